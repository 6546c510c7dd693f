//! Prefetching into the processor's cache. No result depends on it.

/// Prefetches an element, if there is such a one.
#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code)]
#[inline(always)]
pub fn prefetch<T>(of: &[T], at: usize) {
    use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};

    if let Some(element) = of.get(at) {
        // SAFETY: every x86-64 processor has the instruction, which changes nothing and faults nowhere.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(element).cast()) }
    }
}

/// Other architectures do without.
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
