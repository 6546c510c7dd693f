//! Content for tables: repeatable from a seed, and as varied as that of a real application.

mod words;

use std::fmt::Write;

use self::words::WORDS;

/// A small pseudo-random generator (xoshiro256++, seeded by SplitMix64): the same numbers from the same seed
/// on every machine and in every release.
#[derive(Debug, Clone)]
pub struct Random {
    state: [u64; 4],
}

impl Random {
    /// Creates a stream of a seed. Two streams of the same seed are independent; each client has its own.
    pub fn new(seed: u64, stream: u64) -> Random {
        let mut mixed = seed ^ stream.wrapping_mul(0xD1B5_4A32_D192_ED03);
        let mut next = || {
            mixed = mixed.wrapping_add(0x9E37_79B9_7F4A_7C15);
            let mut word = mixed;
            word = (word ^ (word >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
            word = (word ^ (word >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
            word ^ (word >> 31)
        };
        Random { state: [next(), next(), next(), next()] }
    }

    /// Returns the next 64 bits.
    pub fn bits(&mut self) -> u64 {
        let [a, b, c, d] = &mut self.state;
        let result = a.wrapping_add(*d).rotate_left(23).wrapping_add(*a);
        let shifted = *b << 17;
        *c ^= *a;
        *d ^= *b;
        *b ^= *c;
        *a ^= *d;
        *c ^= shifted;
        *d = d.rotate_left(45);
        result
    }

    /// Returns a number from 0 to `bound - 1`; 0 if `bound` is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        // The upper half of a 128-bit product; its bias is far below what any workload notices.
        ((u128::from(self.bits()) * u128::from(bound)) >> 64) as u64
    }

    /// Returns a number from `low` to `high`, inclusive.
    pub fn between(&mut self, low: i64, high: i64) -> i64 {
        low + self.below((high - low + 1).max(1).unsigned_abs()).cast_signed()
    }

    /// True in `percent` of 100 cases.
    pub fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// Returns a number from 0 to `bound - 1`; small numbers are far more frequent, as with popular customers
    /// and products.
    pub fn skewed(&mut self, bound: u64) -> u64 {
        let part = self.below(1 << 20) as f64 / (1 << 20) as f64;
        ((part * part * part) * bound as f64) as u64
    }

    /// Returns one of several values.
    pub fn pick<'a, T: ?Sized>(&mut self, of: &[&'a T]) -> &'a T {
        of[self.below(of.len() as u64) as usize]
    }

    /// Returns a word.
    pub fn word(&mut self) -> &'static str {
        let index = self.below(WORDS.len() as u64) as usize;
        WORDS[index]
    }

    /// Returns a sentence of `words` words, with an occasional number or name.
    pub fn sentence(&mut self, words: u64) -> String {
        let mut text = String::new();
        for index in 0..words {
            if index > 0 {
                text.push_str(if self.chance(8) { ", " } else { " " });
            }
            match self.below(16) {
                0 => _ = write!(text, "{}", self.below(10_000)),
                1 => text.push_str(&self.name()),
                _ => text.push_str(self.word()),
            }
        }
        if let Some(first) = text.get(..1) {
            let upper = first.to_uppercase();
            text.replace_range(..1, &upper);
        }
        text.push('.');
        text
    }

    /// Returns sentences with at least `bytes` bytes in total.
    pub fn text(&mut self, bytes: usize) -> String {
        let mut text = String::with_capacity(bytes + 100);
        while text.len() < bytes {
            let words = 4 + self.below(14);
            text += &self.sentence(words);
            text.push_str(if self.chance(15) { "\n\n" } else { " " });
        }
        text.truncate(text.trim_end().len());
        text
    }

    /// A capitalised word that looks like a name: `Vorelan`.
    pub fn name(&mut self) -> String {
        const SYLLABLES: &[&str] = &[
            "an", "bel", "cor", "da", "el", "fin", "gar", "hel", "is", "jo", "kal", "lo", "mar", "ne", "or",
            "pel", "qui", "ro", "sa", "tor", "ul", "ver", "wen", "xi", "yor", "za",
        ];
        let mut name = String::new();
        for _ in 0..2 + self.below(3) {
            name += self.pick(SYLLABLES);
        }
        let upper = name[..1].to_uppercase();
        name.replace_range(..1, &upper);
        name
    }

    /// `vorelan.sator73@mail.example`
    pub fn email(&mut self) -> String {
        let (first, last, host) = (self.name(), self.name(), self.word());
        format!("{first}.{last}{}@{host}.example", self.below(1000)).to_lowercase()
    }

    /// `https://harbour.example/paper/ancient?id=31415`
    pub fn url(&mut self) -> String {
        let (host, folder, page) = (self.word(), self.word(), self.word());
        format!("https://{host}.example/{folder}/{page}?id={}", self.below(1_000_000))
    }

    /// A random UUID of version 4.
    pub fn uuid(&mut self) -> String {
        let (high, low) = (self.bits(), self.bits());
        let high = high & 0xFFFF_FFFF_FFFF_0FFF | 0x4000;
        let low = low & 0x3FFF_FFFF_FFFF_FFFF | 0x8000_0000_0000_0000;
        format!(
            "{:08x}-{:04x}-{:04x}-{:04x}-{:012x}",
            high >> 32,
            high >> 16 & 0xFFFF,
            high & 0xFFFF,
            low >> 48,
            low & 0xFFFF_FFFF_FFFF
        )
    }

    /// An amount with two decimals.
    pub fn amount(&mut self, largest: u64) -> String {
        format!("{}.{:02}", self.below(largest), self.below(100))
    }

    /// A moment in 2025, with microseconds.
    pub fn moment(&mut self) -> String {
        let (month, day, hour) = (1 + self.below(12), 1 + self.below(28), self.below(24));
        let (minute, second, micro) = (self.below(60), self.below(60), self.below(1_000_000));
        format!("2025-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}.{micro:06}+00")
    }

    /// A JSON object with changing keys, nested `depth` deep.
    pub fn json(&mut self, depth: u32) -> String {
        let mut text = String::from("{");
        for index in 0..2 + self.below(5) {
            if index > 0 {
                text.push(',');
            }
            _ = write!(text, "\"{}_{}\":", self.word(), self.below(20));
            match self.below(if depth > 0 { 8 } else { 6 }) {
                0 => _ = write!(text, "{}", self.between(-1000, 1_000_000)),
                1 => text += &self.amount(5000),
                2 => _ = write!(text, "{}", self.chance(50)),
                3 => _ = write!(text, "\"{}\"", self.url()),
                4 => _ = write!(text, "\"{}\"", self.moment()),
                5 => {
                    let words = 2 + self.below(6);
                    _ = write!(text, "\"{}\"", self.sentence(words));
                }
                6 => text += &self.json(depth - 1),
                _ => _ = write!(text, "[{},{}]", self.json(0), self.below(100)),
            }
        }
        text.push('}');
        text
    }
}

/// Writes a string as an SQL literal.
pub fn quote(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_content() {
        let content = |seed, stream| {
            let mut random = Random::new(seed, stream);
            (random.text(500), random.json(2), random.uuid(), random.email())
        };
        assert_eq!(content(42, 0), content(42, 0));
        assert_ne!(content(42, 0), content(42, 1));
        assert_ne!(content(42, 0), content(43, 0));
    }

    #[test]
    fn json_is_valid_and_numbers_stay_in_range() {
        let mut random = Random::new(1, 2);
        for _ in 0..200 {
            serde_json::from_str::<serde_json::Value>(&random.json(3)).unwrap();
            assert!(random.below(7) < 7);
            assert!((-3..=3).contains(&random.between(-3, 3)));
            assert!(random.skewed(100) < 100);
        }
        assert_eq!(random.below(0), 0);
    }
}
