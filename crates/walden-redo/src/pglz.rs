//! Decompression of PostgreSQL's own format, pglz.
//!
//! A control byte's bits tell, lowest first, whether a literal byte (0) or a tag (1) follows. A tag is two bytes, `llll
//! oooo` and `oooooooo`: length - 3 and the distance back; a length of 18 is followed by a byte that adds to it.
//! `pg_lzcompress.c` decides.

/// Decompresses `source` into `target`, which it must fill exactly; how many bytes it wrote, nothing if the source is
/// damaged.
pub fn decompress(source: &[u8], target: &mut [u8]) -> Option<usize> {
    let (mut read, mut written) = (0, 0);
    while read < source.len() && written < target.len() {
        let mut control = source[read];
        read += 1;
        for _ in 0..8 {
            if read >= source.len() || written >= target.len() {
                break;
            }
            if control & 1 == 0 {
                target[written] = source[read];
                (read, written) = (read + 1, written + 1);
            } else {
                let (high, low) = (*source.get(read)?, *source.get(read + 1)?);
                read += 2;
                let mut len = usize::from(high & 0x0F) + 3;
                let distance = usize::from(high & 0xF0) << 4 | usize::from(low);
                if len == 18 {
                    len += usize::from(*source.get(read)?);
                    read += 1;
                }
                if distance == 0 || distance > written {
                    return None;
                }
                // What is copied may itself be written by this copy.
                let len = len.min(target.len() - written);
                for at in written..written + len {
                    target[at] = target[at - distance];
                }
                written += len;
            }
            control >>= 1;
        }
    }
    (read == source.len() && written == target.len()).then_some(written)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literals_and_copies_come_back() {
        // Three literals, then a copy of 6 from 3 back.
        let source = [0b0000_1000, b'a', b'b', b'c', 0x03, 3];
        let mut target = [0; 9];
        assert_eq!(decompress(&source, &mut target), Some(9));
        assert_eq!(&target, b"abcabcabc");
    }

    #[test]
    fn long_copies_have_a_third_byte() {
        let source = [0b0000_0010, b'x', 0x0F, 1, 82];
        let mut target = [0; 101];
        assert_eq!(decompress(&source, &mut target), Some(101));
        assert!(target.iter().all(|&byte| byte == b'x'));
    }

    #[test]
    fn damage_is_told() {
        let mut target = [0; 9];
        assert_eq!(decompress(&[1, 0x03, 3], &mut target), None, "nothing to copy from");
        assert_eq!(decompress(&[0, b'a'], &mut target), None, "too short");
        assert_eq!(decompress(&[0b10, b'a', 0x03], &mut target), None, "cut in a tag");
        assert_eq!(decompress(&[], &mut []), Some(0));
    }
}
