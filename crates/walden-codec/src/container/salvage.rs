//! Reads a container past damage and reports the lost members.

use std::collections::BTreeMap;
use std::io::{Read, Seek};
use std::ops::ControlFlow;

use super::file_form::FileForm;
use super::layout::{Entry, Head, Place};
use super::reader::{Binding, Reader, Summary, broken};
use super::{Error, ReadLimits};

/// Result of reading a container past damage.
#[derive(Default, Debug)]
pub struct Walk {
    /// Members whose content is verified, in order. If [`Summary::binding`] is not [`Binding::Verified`], the
    /// name and position may belong to another member.
    pub members: Vec<(Head, Summary)>,
    /// Damage found, in order.
    pub damage: Vec<Error>,
    /// Members that could not be decoded, in order.
    pub lost: Vec<Loss>,
}

/// Consecutive members that could not be decoded.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Loss {
    /// Number of the first lost member.
    pub number: u64,
    /// Number of lost members, which exceeds 1 only if nothing but their numbers is known. `None` if the
    /// number of lost members is unknown.
    pub members: Option<u64>,
    /// Name of the member, if known.
    pub name: Option<String>,
    /// Position in the WAL, if known.
    pub place: Option<Place>,
    /// Whether the member itself is damaged. If false, a member that it depends on is damaged.
    pub damaged: bool,
}

/// Heads of members that were not decoded, by number, and whether each is damaged itself.
type Lost = BTreeMap<u64, (Head, bool)>;

/// Callback for each member that can be decoded. The callback has to call [`Reader::decode`].
pub type Decode<'d, R> = dyn FnMut(&mut Reader<&mut R>, &Head) -> Result<Summary, Error> + 'd;

/// Reads a whole container. After damage, reading resumes at the next keyframe.
///
/// `decode` is called for each member that can be decoded.
///
/// # Errors
/// Returns errors that are not damage, and the error of a file without any recognizable member.
pub fn walk<R: Read + Seek>(
    mut input: R,
    limits: ReadLimits,
    decode: &mut Decode<'_, R>,
) -> Result<Walk, Error> {
    let mut walk = Walk::default();
    let opened = Reader::open(&mut input, limits);
    let mut reader = match opened {
        Ok(reader) => reader,
        Err(fault @ (Error::Damage(_) | Error::Foreign)) => {
            let mut reader = Reader::open_damaged(&mut input, limits)?;
            if reader.find_next(0)?.is_none() {
                return Err(fault);
            }
            walk.damage.push(fault);
            reader
        }
        Err(error) => return Err(error),
    };
    reader.start_salvage();
    // The index of a pack verifies the position of members after damage.
    let is_pack = reader.header().is_some_and(|header| header.form == FileForm::Pack);
    let mut index = if is_pack { look_up_index(&mut reader) } else { None };
    let mut lost = Lost::new();
    loop {
        let from = reader.position();
        match next_member(&mut reader, decode, &mut walk, &mut lost) {
            Ok(ControlFlow::Continue(())) => {}
            Ok(ControlFlow::Break(())) => break,
            Err(error @ Error::Damage(_)) => {
                if index.is_none() {
                    // If the header is damaged, the form was unknown before.
                    index = look_up_index(&mut reader);
                }
                walk.damage.push(error);
                if reader.find_next(from + 1)?.is_none() {
                    break;
                }
            }
            Err(error) => return Err(error),
        }
    }
    let has_one = reader.header().is_some_and(|header| header.form == FileForm::Segment);
    let (members, ended) = if has_one { (1, true) } else { (reader.next_member(), reader.is_at_end()) };
    walk.lost = losses(&walk.members, &lost, &index.unwrap_or_default(), members, ended);
    Ok(walk)
}

/// Decodes the next member, unless it depends on a lost one. Breaks at the end of the file.
fn next_member<R: Read + Seek>(
    reader: &mut Reader<&mut R>,
    decode: &mut Decode<'_, R>,
    walk: &mut Walk,
    lost: &mut Lost,
) -> Result<ControlFlow<()>, Error> {
    let from = reader.position();
    let Some(head) = reader.next()? else { return Ok(ControlFlow::Break(())) };
    if !reader.can_decode(&head) {
        lost.insert(head.number, (head.clone(), false));
        reader.skip(&head)?;
        return Ok(ControlFlow::Continue(()));
    }
    match decode(reader, &head) {
        Ok(summary) => {
            if summary.binding == Binding::Broken {
                walk.damage.push(broken(&head, from));
            }
            walk.members.push((head, summary));
            Ok(ControlFlow::Continue(()))
        }
        Err(error) => {
            lost.insert(head.number, (head, true));
            Err(error)
        }
    }
}

/// Returns the index if it is present and intact. The reader keeps its position.
fn look_up_index<R: Read + Seek>(reader: &mut Reader<R>) -> Option<Vec<Entry>> {
    let position = reader.save_position();
    let index = reader.index().ok();
    reader.restore_position(position);
    index
}

/// Returns the lost members: the members in the index that were not decoded; without an index, gaps in the
/// numbers of members, and members whose heads were read but that were not decoded.
fn losses(whole: &[(Head, Summary)], seen: &Lost, index: &[Entry], members: u64, ended: bool) -> Vec<Loss> {
    let mut known: BTreeMap<u64, (&Head, bool)> =
        index.iter().map(|entry| (entry.head.number, (&entry.head, true))).collect();
    known.extend(seen.iter().map(|(number, (head, damaged))| (*number, (head, *damaged))));
    let whole: BTreeMap<u64, &Head> = whole.iter().map(|(head, _)| (head.number, head)).collect();
    let mut losses = Vec::new();
    let mut next = 0;
    let mut numbers: Vec<u64> = known.keys().chain(whole.keys()).copied().collect();
    numbers.sort_unstable();
    numbers.dedup();
    let nameless = |from: u64, to: u64| Loss {
        number: from,
        members: Some(to - from),
        name: None,
        place: None,
        damaged: true,
    };
    for number in numbers {
        if number > next {
            losses.push(nameless(next, number));
        }
        next = number.saturating_add(1);
        let in_index = usize::try_from(number).ok().and_then(|number| index.get(number));
        match (whole.get(&number), in_index) {
            // Another member occupies its position.
            (Some(&head), Some(entry)) if entry.head != *head => {}
            (Some(_), _) => continue,
            (None, _) => {}
        }
        if let Some((head, damaged)) = known.get(&number) {
            losses.push(Loss {
                number,
                members: Some(1),
                name: Some(String::from_utf8_lossy(&head.meta.name).into_owned()),
                place: head.place,
                damaged: *damaged,
            });
        }
    }
    if ended && members > next {
        losses.push(nameless(next, members));
    } else if !ended && index.is_empty() {
        losses.push(Loss { number: next, members: None, name: None, place: None, damaged: true });
    }
    losses
}
