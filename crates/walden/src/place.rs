//! Options that select an archive.

use std::ops::Deref;
use std::path::PathBuf;

use clap::error::Error;
use clap::{ArgMatches, Args, Command, FromArgMatches};
use walden_archiving::place::Place;

/// The archive that options, the environment, or `walden.toml` name.
#[derive(Clone, Debug)]
pub struct PlaceArgs(pub Place);

impl Deref for PlaceArgs {
    type Target = Place;

    fn deref(&self) -> &Place {
        &self.0
    }
}

#[derive(Args)]
struct PlaceOptions {
    /// The archive: a folder, or a URL: s3://BUCKET/PREFIX, az://CONTAINER/PREFIX, gs://BUCKET/PREFIX,
    /// swift://CONTAINER/PREFIX, sftp://USER@HOST/FOLDER
    #[arg(long, value_name = "URL", env = "WALDEN_REPO")]
    repo: Option<String>,

    /// The configuration file [default: walden.toml in the working directory, in a data directory named by an
    /// option, or in /etc/walden]
    #[arg(long, value_name = "FILE", env = "WALDEN_CONFIG")]
    config: Option<PathBuf>,

    /// For reading an encrypted archive: the file with a private key, arn:aws:kms:..., or command:PROGRAM
    #[arg(long, value_name = "FILE", env = "WALDEN_IDENTITY", hide_env_values = true)]
    identity: Option<PathBuf>,
}

impl Args for PlaceArgs {
    fn augment_args(command: Command) -> Command {
        PlaceOptions::augment_args(command)
    }

    fn augment_args_for_update(command: Command) -> Command {
        PlaceOptions::augment_args_for_update(command)
    }
}

impl FromArgMatches for PlaceArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<PlaceArgs, Error> {
        let PlaceOptions { repo, config, identity } = PlaceOptions::from_arg_matches(matches)?;
        Ok(PlaceArgs(Place::new(repo, config, identity)))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        *self = PlaceArgs::from_arg_matches(matches)?;
        Ok(())
    }
}
