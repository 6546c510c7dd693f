//! The delta of a full-page image against the page that it is predicted from: runs of bytes that differ.

use walden_redo::pglz::same_start;

use crate::columns::{Class, Coder, Column, Kind, narrow};
use crate::{Corrupt, corrupt};

/// Where an image differs from what it is told from.
#[derive(Clone, Copy)]
pub struct Differences {
    gap: Column,
    run: Column,
    bytes: Column,
}

impl Differences {
    pub fn new<S: Coder>(coder: &mut S) -> Result<Differences, Corrupt> {
        Ok(Differences {
            gap: coder.column(Kind::Symbols(Class::ImageDifferences))?,
            run: coder.column(Kind::Symbols(Class::ImageDifferences))?,
            bytes: coder.column(Kind::Bytes(Class::ImageDifferences))?,
        })
    }
}

/// Runs of bytes that differ from those known, each as the bytes to mix in. Makes of what is known what is wanted.
pub fn difference<S: Coder>(
    coder: &mut S,
    columns: Differences,
    known: &mut [u8],
    source: &[u8],
) -> Result<(), Corrupt> {
    /// Equal bytes that end a run: fewer are cheaper to mix in than to skip.
    const GAP: usize = 4;
    let (encoding, len) = (!source.is_empty(), known.len());
    if encoding && source.len() != len {
        return Err(corrupt("an image has another length than it says"));
    }
    let mut at = 0;
    let mut mixed = Vec::new();
    loop {
        let gap = if encoding { same_start(&source[at..], &known[at..]) } else { 0 };
        let gap = narrow(coder.symbol(columns.gap, gap as u64)?)?;
        at = at
            .checked_add(gap)
            .filter(|&at| at <= len)
            .ok_or_else(|| corrupt("a difference is beyond the page"))?;
        if at == len {
            break;
        }
        let run = if encoding {
            let mut end = at + 1;
            while end < len {
                let until = (end + GAP).min(len);
                match source[end..until].iter().zip(&known[end..until]).position(|(new, old)| new != old) {
                    Some(skip) => end += skip + 1,
                    None => break,
                }
            }
            mixed.clear();
            mixed.extend(source[at..end].iter().zip(&known[at..end]).map(|(new, old)| new ^ old));
            end - at
        } else {
            0
        };
        let run: usize = narrow(coder.symbol(columns.run, run as u64)?)?;
        let end = at
            .checked_add(run)
            .filter(|&end| end <= len && run > 0)
            .ok_or_else(|| corrupt("a difference is beyond the page"))?;
        let mut bytes = Vec::new();
        coder.bytes(columns.bytes, &mixed, run, &mut bytes)?;
        known[at..end].iter_mut().zip(&bytes).for_each(|(byte, mix)| *byte ^= mix);
        at = end;
        if at == len {
            break;
        }
    }
    Ok(())
}
