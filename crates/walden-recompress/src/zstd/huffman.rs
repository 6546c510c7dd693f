//! Huffman coding of literals.
//!
//! The codes are canonical: a frame has only their lengths, as weights. The lengths are those of a Huffman
//! tree, limited to [`MAX_BITS`]. Which of equally frequent bytes gets the shorter code depends on the sort,
//! which differs between releases.

use super::Release;
use super::bits::BitWriter;
use super::fse;

/// Longest code in bits.
const MAX_BITS: u32 = 11;
/// Weights are coded by FSE tables of at most 2^6 states.
const WEIGHTS_LOG: u32 = 6;

/// The result of compressing literals.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Outcome {
    /// The target has the compressed literals.
    Coded,
    /// All literals are the same byte; the target is unchanged.
    Same,
    /// Compression does not save enough; the target may have part of the output.
    NotWorthIt,
}

/// Compresses literals; its tables are reused from call to call.
pub(super) struct Huffman {
    leaves: Vec<Leaf>,
    /// For each byte: the code in the low 16 bits, its length above.
    codes: [u32; 256],
    weights: fse::Table,
}

#[derive(Clone, Copy, Default)]
struct Leaf {
    count: u32,
    byte: u8,
    bits: u8,
}

impl Default for Huffman {
    fn default() -> Huffman {
        Huffman { leaves: Vec::with_capacity(256), codes: [0; 256], weights: fse::Table::default() }
    }
}

impl Huffman {
    /// Appends the description of the code lengths, and the codes in one or four streams.
    pub(super) fn compress(
        &mut self,
        release: Release,
        literals: &[u8],
        four_streams: bool,
        target: &mut Vec<u8>,
    ) -> Outcome {
        let start = target.len();
        let counts = count(literals);
        let most = counts.iter().copied().max().unwrap_or(0) as usize;
        if most == literals.len() {
            return Outcome::Same;
        }
        if most <= (literals.len() >> 7) + 4 {
            return Outcome::NotWorthIt;
        }
        let highest = counts.iter().rposition(|&count| count > 0).unwrap_or(0);
        let most_bits = fse::best_log(MAX_BITS, literals.len() as u32, highest, 1);
        sort(release, &counts[..=highest], &mut self.leaves);
        grow(&mut self.leaves);
        let most_bits = flatten(&mut self.leaves, most_bits);
        self.assign_codes(most_bits);
        if !self.describe(release, highest, most_bits, target) || target.len() - start + 12 >= literals.len()
        {
            return Outcome::NotWorthIt;
        }
        if four_streams {
            let sizes = target.len();
            target.extend_from_slice(&[0; 6]);
            let (three, last) = literals.split_at(literals.len().div_ceil(4) * 3);
            for (stream, literals) in three.chunks(literals.len().div_ceil(4)).enumerate() {
                let before = target.len();
                self.stream(literals, target);
                let len = (target.len() - before) as u16;
                target[sizes + 2 * stream..][..2].copy_from_slice(&len.to_le_bytes());
            }
            self.stream(last, target);
        } else {
            self.stream(literals, target);
        }
        Outcome::Coded
    }

    fn stream(&self, literals: &[u8], target: &mut Vec<u8>) {
        let mut bits = BitWriter::new(target);
        let add = |byte: u8, bits: &mut BitWriter| {
            let code = self.codes[usize::from(byte)];
            bits.add_clean(code & 0xFFFF, code >> 16);
        };
        let (pairs, single) = literals.as_chunks::<2>();
        for &byte in single {
            add(byte, &mut bits);
        }
        for &[first, second] in pairs.iter().rev() {
            add(second, &mut bits);
            add(first, &mut bits);
            bits.flush();
        }
        bits.finish_marked();
    }

    /// Assigns canonical codes: longer codes have lower values; codes of one length ascend with the byte.
    fn assign_codes(&mut self, most_bits: u32) {
        self.codes = [0; 256];
        let mut next = [0_u32; MAX_BITS as usize + 2];
        for leaf in &self.leaves {
            self.codes[usize::from(leaf.byte)] = u32::from(leaf.bits) << 16;
            next[usize::from(leaf.bits)] += 1;
        }
        let mut first = 0;
        for next in next[1..=most_bits as usize].iter_mut().rev() {
            let codes = std::mem::replace(next, first);
            first = (first + codes) >> 1;
        }
        for code in self.codes.iter_mut().filter(|code| **code > 0) {
            let next = &mut next[(*code >> 16) as usize];
            *code |= *next;
            *next += 1;
        }
    }

    /// Appends the weights of all bytes but the highest, whose weight follows from the others
    /// (`HUF_writeCTable`): FSE-coded if that is much shorter, else in four bits each. False if neither is
    /// possible.
    fn describe(&mut self, release: Release, highest: usize, most_bits: u32, target: &mut Vec<u8>) -> bool {
        let mut weights = [0_u8; 256];
        for (weight, code) in weights.iter_mut().zip(&self.codes[..highest]) {
            let bits = code >> 16;
            *weight = if bits > 0 { (most_bits + 1 - bits) as u8 } else { 0 };
        }
        let start = target.len();
        target.push(0);
        let Ok(coded) = self.code_weights(release, &weights[..highest], target) else { return false };
        let len = target.len() - start - 1;
        if coded && len > 1 && len < highest / 2 {
            target[start] = len as u8;
            return true;
        }
        target.truncate(start);
        if highest > 128 {
            return false;
        }
        target.push((127 + highest) as u8);
        target.extend(
            weights[..highest.next_multiple_of(2)].as_chunks::<2>().0.iter().map(|two| two[0] << 4 | two[1]),
        );
        true
    }

    /// Appends FSE-coded weights (`HUF_compressWeights`). Returns whether it makes sense to use them; an
    /// error if the library reports one.
    fn code_weights(&mut self, release: Release, weights: &[u8], target: &mut Vec<u8>) -> Result<bool, ()> {
        let mut counts = [0_u32; MAX_BITS as usize + 2];
        for &weight in weights {
            counts[usize::from(weight)] += 1;
        }
        let most = counts.iter().copied().max().unwrap_or(0);
        if weights.len() <= 2 || most as usize == weights.len() || most == 1 {
            return Ok(false);
        }
        let total = weights.len() as u32;
        let highest = counts.iter().rposition(|&count| count > 0).unwrap_or(0);
        let log = fse::best_log(WEIGHTS_LOG, total, highest, 2);
        let shares =
            fse::normalize(&counts[..=highest], total, log, release.less_than_one(total)).ok_or(())?;
        let shares = &shares[..=highest];
        fse::describe(shares, log, target);
        self.weights.fill(shares, log);
        // Two interleaved states; the first one codes the even positions.
        let mut bits = BitWriter::new(target);
        let (early, last) = weights.split_at(total as usize - 2);
        let mut states = [0; 2];
        for (at, &weight) in last.iter().enumerate() {
            states[(early.len() + at) % 2] = self.weights.begin(usize::from(weight));
        }
        for (at, &weight) in early.iter().enumerate().rev() {
            self.weights.encode(usize::from(weight), &mut states[at % 2], &mut bits);
            bits.flush();
        }
        self.weights.end(states[1], &mut bits);
        self.weights.end(states[0], &mut bits);
        bits.finish_marked();
        Ok(true)
    }
}

/// Counts the bytes in four interleaved tables, because consecutive equal bytes would wait for each other's
/// increment.
fn count(literals: &[u8]) -> [u32; 256] {
    let mut counts = [[0_u32; 256]; 4];
    let (fours, rest) = literals.as_chunks::<4>();
    for four in fours {
        for (counts, &byte) in counts.iter_mut().zip(four) {
            counts[usize::from(byte)] += 1;
        }
    }
    let [mut sum, others @ ..] = counts;
    for &byte in rest {
        sum[usize::from(byte)] += 1;
    }
    for other in &others {
        for (sum, count) in sum.iter_mut().zip(other) {
            *sum += count;
        }
    }
    sum
}

/// Sorts the bytes that occur by descending frequency (`HUF_sort`).
///
/// They are distributed to buckets and sorted there. Up to 1.5.0 the sort is stable; since then there are
/// more buckets, and an unstable sort in those for counts from 164 on.
fn sort(release: Release, counts: &[u32], leaves: &mut Vec<Leaf>) {
    /// Counts below this have a bucket each; larger ones share a bucket with those of the same bit length.
    const OWN_BUCKET: u32 = 165;
    const BUCKETS: usize = (OWN_BUCKET + 32) as usize;
    let bucket_of = |count: u32| {
        (if count < OWN_BUCKET { count } else { OWN_BUCKET - OWN_BUCKET.ilog2() + count.ilog2() }) as usize
    };

    let mut starts = [0_u16; BUCKETS + 1];
    let mut len = 0;
    for &count in counts.iter().filter(|&&count| count > 0) {
        starts[bucket_of(count)] += 1;
        len += 1;
    }
    let mut before = 0;
    for start in starts.iter_mut().rev() {
        before += std::mem::replace(start, before);
    }
    leaves.clear();
    leaves.resize(len, Leaf::default());
    let mut ends = starts;
    for (byte, &count) in counts.iter().enumerate().filter(|(_, count)| **count > 0) {
        let end = &mut ends[bucket_of(count)];
        leaves[usize::from(*end)] = Leaf { count, byte: byte as u8, bits: 0 };
        *end += 1;
    }
    for bucket in OWN_BUCKET as usize - 1..BUCKETS {
        let bucket = &mut leaves[usize::from(starts[bucket])..usize::from(ends[bucket])];
        if release.sorts_quickly() {
            sort_quickly(bucket);
        } else {
            sort_stably(bucket);
        }
    }
}

fn sort_stably(leaves: &mut [Leaf]) {
    for at in 1..leaves.len() {
        let leaf = leaves[at];
        let mut to = at;
        while to > 0 && leaves[to - 1].count < leaf.count {
            leaves[to] = leaves[to - 1];
            to -= 1;
        }
        leaves[to] = leaf;
    }
}

/// Sorts with quicksort, with the last element as pivot (`HUF_simpleQuickSort`); short parts are sorted by
/// insertion.
fn sort_quickly(mut leaves: &mut [Leaf]) {
    if leaves.len() <= 8 {
        return sort_stably(leaves);
    }
    while leaves.len() > 1 {
        let last = leaves.len() - 1;
        let pivot = leaves[last].count;
        let mut middle = 0;
        for at in 0..last {
            if leaves[at].count > pivot {
                leaves.swap(middle, at);
                middle += 1;
            }
        }
        leaves.swap(middle, last);
        let (before, after) = leaves.split_at_mut(middle);
        let after = &mut after[1..];
        leaves = if before.len() < after.len() {
            sort_quickly(before);
            after
        } else {
            sort_quickly(after);
            before
        };
    }
}

/// Builds the Huffman tree and sets the depth of each leaf. Among equally rare nodes, inner nodes are joined
/// first, then leaves from the end.
fn grow(leaves: &mut [Leaf]) {
    let joins = leaves.len() - 1;
    let mut counts = [0_u32; 256];
    let mut parents = [0_u8; 256];
    let mut leaf_parents = [0_u8; 256];
    let (mut leaves_left, mut joins_used) = (leaves.len(), 0);
    for join in 0..joins {
        for _ in 0..2 {
            let leaf = leaves_left.checked_sub(1).map(|at| leaves[at].count);
            let joined = (joins_used < join).then(|| counts[joins_used]);
            counts[join] += match (leaf, joined) {
                (Some(leaf), joined) if joined.is_none_or(|joined| leaf < joined) => {
                    leaves_left -= 1;
                    leaf_parents[leaves_left] = join as u8;
                    leaf
                }
                (_, joined) => {
                    parents[joins_used] = join as u8;
                    joins_used += 1;
                    joined.unwrap_or(0)
                }
            };
        }
    }
    let mut depths = [0_u8; 256];
    for join in (0..joins.saturating_sub(1)).rev() {
        depths[join] = depths[usize::from(parents[join])] + 1;
    }
    for (leaf, &parent) in leaves.iter_mut().zip(&leaf_parents) {
        leaf.bits = depths[usize::from(parent)] + 1;
    }
}

/// Limits code lengths to `limit` bits by lengthening shorter codes (`HUF_setMaxHeight`). Returns the longest
/// length.
fn flatten(leaves: &mut [Leaf], limit: u32) -> u32 {
    const NONE: usize = usize::MAX;

    let longest = leaves.last().map_or(0, |leaf| u32::from(leaf.bits));
    if longest <= limit {
        return longest;
    }
    let limit_bits = limit as u8;
    // The excess of the Kraft sum, in codes of `limit` bits. There are more such codes than leaves, so that
    // some leaf is shorter.
    let mut debt = 0_i64;
    let mut at = leaves.len() - 1;
    while leaves[at].bits > limit_bits {
        debt += (1 << (longest - limit)) - (1 << (longest - u32::from(leaves[at].bits)));
        leaves[at].bits = limit_bits;
        at -= 1;
    }
    debt >>= longest - limit;
    while leaves[at].bits == limit_bits {
        at -= 1;
    }
    // Index: the difference to the limit in bits. Value: the last leaf with that length.
    let mut last = [NONE; 16];
    let mut bits = limit_bits;
    for (at, leaf) in leaves[..=at].iter().enumerate().rev() {
        if leaf.bits < bits {
            bits = leaf.bits;
            last[usize::from(limit_bits - bits)] = at;
        }
    }
    while debt > 0 {
        // Lengthens a leaf that frees the needed amount, or two leaves that free half of it each if they are
        // rarer.
        let mut shorter = debt.ilog2() as usize + 1;
        while shorter > 1 {
            let (one, two) = (last[shorter], last[shorter - 1]);
            if one != NONE && (two == NONE || leaves[one].count <= 2 * leaves[two].count) {
                break;
            }
            shorter -= 1;
        }
        while last[shorter] == NONE {
            shorter += 1;
        }
        let leaf = last[shorter];
        debt -= 1 << (shorter - 1);
        leaves[leaf].bits += 1;
        if last[shorter - 1] == NONE {
            last[shorter - 1] = leaf;
        }
        let before = leaf.checked_sub(1);
        last[shorter] =
            before.filter(|&at| usize::from(limit_bits - leaves[at].bits) == shorter).unwrap_or(NONE);
    }
    while debt < 0 {
        // If too much was freed, the most frequent bytes with the longest codes get shorter ones.
        if last[1] == NONE {
            while leaves[at].bits == limit_bits {
                at -= 1;
            }
            last[1] = at;
        }
        last[1] += 1;
        leaves[last[1]].bits -= 1;
        debt += 1;
    }
    limit
}
