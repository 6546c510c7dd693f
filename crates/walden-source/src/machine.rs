//! The machine's memory.

/// Returns the machine's memory in bytes, or the limit of the process's control group if that is lower.
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

/// Returns how many bytes of memory to use for the pages of one WAL stream that is compressed or
/// decompressed: a thirty-second of the machine's memory, from 64 to 256 MB. Further pages go to a temporary
/// file, which takes up to a third of the time of a pack. A pack seldom needs more between two keyframes.
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
