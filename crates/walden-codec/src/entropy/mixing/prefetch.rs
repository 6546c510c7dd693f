//! Prefetches into the processor's cache. Results do not depend on it.

/// Prefetches an element, if the index is valid.
#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code)]
#[inline(always)]
pub fn prefetch<T>(of: &[T], at: usize) {
    use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};

    if let Some(element) = of.get(at) {
        // SAFETY: every x86-64 processor has the instruction. It changes no state and cannot fault.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(element).cast()) }
    }
}

/// Does nothing on other architectures.
#[cfg(not(target_arch = "x86_64"))]
#[inline(always)]
pub fn prefetch<T>(_: &[T], _: usize) {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_index_may_be_prefetched() {
        let elements = [1_u64, 2, 3];
        (0..5).chain([usize::MAX]).for_each(|at| prefetch(&elements, at));
        prefetch::<u8>(&[], 0);
        assert_eq!(elements, [1, 2, 3]);
    }
}
