//! The figures of End Point's comparison (2017): 100 segments of 16 MB of a busy production system, 16 cores;
//! averages per segment.

use serde::Serialize;

/// A program at levels 1 to 9.
#[derive(Debug, Serialize)]
pub struct Published {
    /// A row of the contenders.
    pub contender: &'static str,
    /// Wall seconds.
    pub seconds: [f64; 9],
    pub megabytes: [f64; 9],
}

#[rustfmt::skip]
pub const PUBLISHED: &[Published] = &[
    Published {
        contender: "gzip",
        seconds:   [0.271, 0.292, 0.366, 0.381, 0.492, 0.734, 0.991, 2.042, 3.626],
        megabytes: [4.927, 4.777, 4.667, 4.486, 4.318, 4.250, 4.235, 4.228, 4.227],
    },
    Published {
        contender: "bzip2",
        seconds:   [1.540, 1.531, 1.570, 1.625, 1.667, 1.707, 1.731, 1.752, 1.784],
        megabytes: [3.817, 3.688, 3.638, 3.592, 3.587, 3.566, 3.559, 3.557, 3.541],
    },
    Published {
        contender: "xz",
        seconds:   [0.962, 1.186, 5.911, 6.292, 6.694, 8.988, 9.194, 9.117, 9.164],
        megabytes: [3.174, 3.066, 2.711, 2.682, 2.666, 2.608, 2.592, 2.596, 2.597],
    },
    Published {
        contender: "lrzip-l",
        seconds:   [0.296, 0.319, 0.341, 0.370, 0.389, 0.901, 2.090, 2.829, 5.983],
        megabytes: [5.712, 5.686, 5.645, 5.639, 5.627, 5.501, 5.462, 5.471, 5.463],
    },
    Published {
        contender: "lrzip-z",
        seconds:   [3.582, 3.577, 3.601, 11.971, 11.890, 11.971, 12.861, 30.080, 33.171],
        megabytes: [3.353, 3.342, 3.326, 2.799, 2.741, 2.751, 2.750, 2.483, 2.482],
    },
    Published {
        contender: "7za",
        seconds:   [0.128, 0.139, 0.301, 1.251, 3.821, 3.841, 4.631, 4.671, 4.663],
        megabytes: [3.182, 3.116, 3.059, 3.001, 2.620, 2.629, 2.591, 2.590, 2.599],
    },
    Published {
        contender: "pigz",
        seconds:   [0.051, 0.051, 0.051, 0.051, 0.051, 0.060, 0.081, 0.140, 0.251],
        megabytes: [4.904, 4.755, 4.645, 4.472, 4.304, 4.255, 4.225, 4.212, 4.214],
    },
    Published {
        contender: "lbzip2",
        seconds:   [0.135, 0.151, 0.151, 0.151, 0.151, 0.151, 0.150, 0.151, 0.150],
        megabytes: [3.801, 3.664, 3.615, 3.586, 3.562, 3.545, 3.538, 3.524, 3.528],
    },
    Published {
        contender: "pxz",
        seconds:   [0.135, 0.175, 1.244, 2.528, 5.115, 9.116, 9.255, 9.267, 9.355],
        megabytes: [3.266, 3.095, 2.746, 2.704, 2.679, 2.604, 2.599, 2.595, 2.591],
    },
];

/// `wal_compression` crossed with a program: total MB of one pgbench run's WAL files, PostgreSQL 9.6.
pub const WAL_COMPRESSION: &[(&str, &str, f64)] =
    &[("off", "none", 208.1), ("pglz", "none", 81.0), ("off", "xz -2", 8.6), ("pglz", "xz -2", 9.4)];

/// One level of a contender as published.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Figures {
    pub megabytes: f64,
    pub wall_seconds: f64,
    /// Bytes over those of `xz -2`.
    pub times_xz_2: f64,
}

/// Returns the published figures of a contender at a level.
pub fn find(contender: &str, level: u8) -> Option<Figures> {
    let at = usize::from(level.checked_sub(1)?);
    let row = |name: &str| PUBLISHED.iter().find(|row| row.contender == name);
    let (own, reference) = (row(contender)?, row("xz")?);
    let megabytes = *own.megabytes.get(at)?;
    Some(Figures {
        megabytes,
        wall_seconds: *own.seconds.get(at)?,
        times_xz_2: megabytes / reference.megabytes[1],
    })
}
