//! The selection of a seed.

use serde::{Deserialize, Serialize};

use super::kinds::{self, HEALTHY, HEALTHY_IN, KINDS, Kind};
use crate::data::Random;

/// Version of the selection and of the results; results of another version are not reused.
const GENERATOR: u32 = 4;

/// The server and the culprit of a seed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// The version of the generator.
    pub generator: u32,
    /// The seed.
    pub seed: u64,
    /// The kind of culprit.
    pub culprit: String,
    /// The server's version, as `postgres --version` prints it.
    pub postgresql: String,
    /// Data checksums, unless the culprit depends on them.
    pub checksums: bool,
    /// Settings of the server; those of the culprit take precedence.
    pub settings: Vec<(String, String)>,
}

/// Returns the names of all kinds of culprits.
pub fn kind_names() -> impl Iterator<Item = &'static str> {
    kinds::all().map(|kind| kind.name)
}

impl Plan {
    /// Selects from the kinds of these names (all if empty), and from these major versions with their text.
    ///
    /// Consecutive seeds go through all kinds, in another order each time.
    pub(super) fn new(
        seed: u64,
        only: &[String],
        versions: &[(u32, String)],
    ) -> Option<(Plan, &'static Kind, usize)> {
        let mut random = Random::new(seed, 0);
        let is_wanted = |kind: &&'static Kind| only.is_empty() || only.iter().any(|name| name == kind.name);
        let kind = match kinds::all().all(|kind| is_wanted(&kind)) {
            true if random.below(HEALTHY_IN) == 0 => &HEALTHY[random.below(HEALTHY.len() as u64) as usize],
            true => &KINDS[shuffled(seed, KINDS.len())],
            false => {
                let wanted: Vec<&'static Kind> = kinds::all().filter(is_wanted).collect();
                wanted.get(shuffled(seed, wanted.len())).copied()?
            }
        };
        let able: Vec<usize> = (0..versions.len()).filter(|at| versions[*at].0 >= kind.since).collect();
        let version = *able.get(random.below(able.len() as u64) as usize)?;
        let mut settings: Vec<(String, String)> = Vec::new();
        let mut set = |name: &str, value: &str| settings.push((name.into(), value.into()));
        set("wal_compression", random.pick(&["off", "off", "on"]));
        match random.below(3) {
            0 => set("autovacuum", "off"),
            1 => set("autovacuum", "on"),
            _ => {
                set("autovacuum", "on");
                set("autovacuum_naptime", "2s");
            }
        }
        set("shared_buffers", random.pick(&["48MB", "128MB", "300MB"]));
        set("synchronous_commit", random.pick(&["on", "off", "local"]));
        set("max_wal_size", random.pick(&["2GB", "4GB", "8GB"]));
        set("full_page_writes", "on");
        set("jit", "off");
        let plan = Plan {
            generator: GENERATOR,
            seed,
            culprit: kind.name.into(),
            postgresql: versions[version].1.clone(),
            checksums: random.chance(50),
            settings,
        };
        Some((plan, kind, version))
    }
}

/// Returns a number below `count`: each one once in `count` consecutive seeds.
fn shuffled(seed: u64, count: usize) -> usize {
    let (count, mut order) = (count.max(1), (0..count).collect::<Vec<_>>());
    let mut random = Random::new(seed / count as u64, 2);
    for at in (1..order.len()).rev() {
        order.swap(at, random.below(at as u64 + 1) as usize);
    }
    order.get((seed % count as u64) as usize).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn versions() -> Vec<(u32, String)> {
        (14..20).map(|major| (major, format!("{major}.1"))).collect()
    }

    #[test]
    fn a_seed_always_selects_the_same() {
        for seed in 0..50 {
            let [one, other] = [(); 2].map(|()| Plan::new(seed, &[], &versions()).unwrap().0);
            assert_eq!(one, other);
        }
    }

    #[test]
    fn two_hundred_seeds_reach_all_culprits_and_versions_and_25_healthy_servers() {
        let plans: Vec<Plan> = (1..=200).map(|seed| Plan::new(seed, &[], &versions()).unwrap().0).collect();
        let culprits: BTreeSet<&str> = plans.iter().map(|plan| plan.culprit.as_str()).collect();
        assert!(culprits.len() >= 60, "{culprits:?}");
        let servers: BTreeSet<&str> = plans.iter().map(|plan| plan.postgresql.as_str()).collect();
        assert_eq!(servers.len(), 6);
        let healthy = plans.iter().filter(|plan| plan.culprit.starts_with("none-")).count();
        assert!((15..=40).contains(&healthy), "{healthy}");
    }

    #[test]
    fn culprits_of_later_versions_select_these() {
        let only = ["create-database".to_owned()];
        for seed in 0..20 {
            assert!(!Plan::new(seed, &only, &versions()).unwrap().0.postgresql.starts_with("14"));
        }
        assert!(Plan::new(1, &only, &versions()[..1]).is_none());
    }
}
