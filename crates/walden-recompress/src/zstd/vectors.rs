//! Results of libzstd's releases for [`sources`](super::sources), printed by `tests/zstd-vectors/run`.

use super::Release;

/// The results of one release.
pub struct Vector {
    /// The release of libzstd.
    pub version: &'static str,
    /// The [`Release`] that must produce the same.
    pub release: Release,
    /// The checksum of the sequences that it found in all sources.
    pub found: u64,
    /// Hashes of its frames of the judged sources.
    pub frames: [u64; 2],
}

/// Returns the results of each release that the generator builds.
pub fn vectors() -> Vec<Vector> {
    include_str!("vectors.txt").lines().map(vector).collect()
}

fn vector(line: &'static str) -> Vector {
    let (version, sums) = line.split_once(' ').expect("a version");
    let mut sums = sums.split(' ').map(|sum| u64::from_str_radix(sum, 16).expect("a hexadecimal number"));
    let mut next = || sums.next().expect("three sums");
    Vector { version, release: release_of(version), found: next(), frames: [next(), next()] }
}

/// Returns the [`Release`] that reproduces a release of libzstd.
fn release_of(version: &str) -> Release {
    let numbers: Vec<u32> = version.split('.').map(|number| number.parse().expect("a number")).collect();
    match numbers[..] {
        [1, 4, 4..=5] => Release::V1_4_4,
        [1, 4, 7..=9] | [1, 5, 0] => Release::V1_4_7,
        [1, 5, 1..=6] => Release::V1_5_1,
        [1, 5, 7] => Release::V1_5_7,
        _ => panic!("libzstd {version} is not one of the releases here"),
    }
}
