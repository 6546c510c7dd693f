//! Compression levels `-1` to `-9`, as in gzip and xz, in addition to `--level`.

use clap::{Arg, ArgAction, ArgGroup, ArgMatches, Args, Command, Error, FromArgMatches};

/// The flags `-1` to `-9` of a command that also has the option `--level`.
#[derive(Clone, Copy, Default, Debug)]
pub struct LevelFlags(Option<u8>);

impl LevelFlags {
    /// Returns the level of the given flag, otherwise `level`.
    pub fn or(self, level: Option<u8>) -> Option<u8> {
        self.0.or(level)
    }
}

/// Argument IDs of the flags, sorted by level.
const FLAGS: [&str; 9] =
    ["level_1", "level_2", "level_3", "level_4", "level_5", "level_6", "level_7", "level_8", "level_9"];

impl Args for LevelFlags {
    fn augment_args(command: Command) -> Command {
        let flag = |(digit, id)| {
            Arg::new(id).short(digit).action(ArgAction::SetTrue).hide(true).conflicts_with("level")
        };
        let flags = ('1'..='9').zip(FLAGS).map(flag);
        command.args(flags).group(ArgGroup::new("level_flags").args(FLAGS))
    }

    fn augment_args_for_update(command: Command) -> Command {
        LevelFlags::augment_args(command)
    }
}

impl FromArgMatches for LevelFlags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<LevelFlags, Error> {
        Ok(LevelFlags((1..=9).zip(FLAGS).find(|(_, id)| matches.get_flag(id)).map(|(level, _)| level)))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        *self = LevelFlags::from_arg_matches(matches)?;
        Ok(())
    }
}
