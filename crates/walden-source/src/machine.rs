//! How much memory the machine has.

/// Bytes of memory that the machine has, or that the process's control group is allowed.
pub fn memory_bytes() -> u64 {
    const UNTOLD: u64 = 4 << 30;
    let read = |path: &str| std::fs::read_to_string(path).ok();
    let total = read("/proc/meminfo").and_then(|text| {
        let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
        line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()
    });
    let total = total.map_or(UNTOLD, |kilobytes| kilobytes << 10);
    let allowed = read("/sys/fs/cgroup/memory.max").and_then(|text| text.trim().parse().ok());
    allowed.unwrap_or(total).min(total)
}

/// Bytes of memory for the pages of one log that is compressed or decompressed: what does not fit goes to a temporary file, which takes
/// up to a third of the time of a pack. A thirty-second of the machine's memory, from 64 to 256 MB; what a pack has from one keyframe
/// to the next is seldom more.
pub fn page_memory() -> u64 {
    (memory_bytes() / 32).clamp(64 << 20, 256 << 20)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_told_by_the_system() {
        assert!(memory_bytes() > 64 << 20);
        assert!((64 << 20..=256 << 20).contains(&page_memory()));
    }
}
