//! Room for much at once: bytes of a segment, of its columns.
//!
//! The system clears memory when it is first written to, a small page of 4 kB at a time, and each takes as long as a good part
//! of decoding what goes there. On large pages of 2 MB that is next to nothing.

/// An empty vector with room for so many bytes.
pub fn room(bytes: usize) -> Vec<u8> {
    let room = Vec::with_capacity(bytes);
    on_large_pages(&room);
    room
}

/// The same, or nothing where the system has no such room.
pub fn try_room(bytes: usize) -> Option<Vec<u8>> {
    let mut room = Vec::new();
    room.try_reserve_exact(bytes).ok()?;
    on_large_pages(&room);
    Some(room)
}

/// Makes room for so many bytes more, on large pages again; twice what there was at least, as vectors do by themselves.
#[inline]
pub fn reserve(vector: &mut Vec<u8>, bytes: usize) {
    if bytes > vector.capacity() - vector.len() {
        grow(vector, bytes);
    }
}

#[cold]
fn grow(vector: &mut Vec<u8>, bytes: usize) {
    let wanted = vector.len().saturating_add(bytes);
    let mut larger = room(wanted.max(vector.capacity().saturating_mul(2)));
    larger.extend_from_slice(vector);
    *vector = larger;
}

/// Bytes before which something was put that was known only after them.
pub struct Headed {
    bytes: Vec<u8>,
    start: usize,
}

impl Headed {
    /// `bytes` from `body_at` on, after `head`, which takes as much as there is before at most.
    pub fn new(head: &[u8], mut bytes: Vec<u8>, body_at: usize) -> Headed {
        let start = body_at - head.len();
        bytes[start..body_at].copy_from_slice(head);
        Headed { bytes, start }
    }
}

impl std::ops::Deref for Headed {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[self.start..]
    }
}

/// Asks for large pages where what the vector has room for covers some.
#[cfg(target_os = "linux")]
#[allow(unsafe_code)]
fn on_large_pages(vector: &Vec<u8>) {
    use rustix::mm::{Advice, madvise};

    const LARGE_PAGE: usize = 2 << 20;
    if vector.capacity() < 2 * LARGE_PAGE {
        return;
    }
    let start = vector.as_ptr().cast_mut();
    let skipped = start.align_offset(rustix::param::page_size());
    let bytes = vector.capacity().saturating_sub(skipped);
    // SAFETY: the range is within what the vector owns. How large its pages are changes nothing of what they hold.
    let _ = unsafe { madvise(start.wrapping_add(skipped).cast(), bytes, Advice::LinuxHugepage) };
}

/// Elsewhere, it is the system's business.
#[cfg(not(target_os = "linux"))]
fn on_large_pages(_: &Vec<u8>) {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_as_any_other() {
        for bytes in [0, 1, 4095, 4 << 20, (16 << 20) + 5] {
            let mut one = room(bytes);
            assert!(one.is_empty() && one.capacity() >= bytes);
            one.resize(bytes, 7);
            reserve(&mut one, 5 << 20);
            assert!(one.capacity() >= bytes + (5 << 20) && one.len() == bytes);
            assert!(one.iter().all(|&byte| byte == 7), "content moves along");
            assert!(try_room(bytes).is_some_and(|room| room.is_empty() && room.capacity() >= bytes));
            assert_eq!(try_room(usize::MAX - bytes), None);
            let before = one.capacity();
            reserve(&mut one, 1);
            assert_eq!(one.capacity(), before, "there is room");
        }
    }
}
