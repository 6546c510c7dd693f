//! Compresses files to one pack.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File, Metadata};
use std::io::{BufWriter, Read as _};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, SyncSender};

use walden_codec::coder::start_of;
use walden_codec::container::{Added, FileForm, Meta, Reader, Writer};
use walden_format::lsn::{Lsn, SegmentName, SegmentSize, Timeline};
use walden_format::page::LONG_HEADER;
use walden_format::stream::StreamInfo;
use walden_output::{Inputs, Output, expect_no_input, meta_of};

use crate::PACK_ENDING;
use crate::compress::{CompressOptions, Compressor, Done, own_limits, refuse_other_members, verify_member};
use crate::error::{FileError, VerifyError};
use crate::inputs::{Counted, Input, gather, open, remove};

type Result<T> = std::result::Result<T, FileError>;

impl Compressor<'_> {
    /// Compresses all files, at least one, to one pack. If a member decodes to other bytes, starts over
    /// with that member coded as bytes. `name` is the path of the pack, or its name in the folder of the
    /// options; without it, the pack is named after its first and last segment.
    ///
    /// # Errors
    /// A file cannot be read, or the pack cannot be written or does not decode to the files.
    pub fn pack(&self, name: Option<&Path>, inputs: Vec<Input>) -> Result<Done> {
        let (inputs, places) = in_order(inputs)?;
        let target = pack_target(self.options.folder.as_deref(), name, &inputs);
        expect_no_input(&target, self.read)?;
        if !self.options.replaces {
            let members: Option<Vec<(&[u8], u64)>> = inputs
                .iter()
                .map(|input| {
                    Some((input.relative.as_os_str().as_bytes(), fs::metadata(&input.path).ok()?.len()))
                })
                .collect();
            refuse_other_members(&target, &members.unwrap_or_default())?;
        }
        self.warn_of_gaps(&places);
        let mut as_bytes = BTreeSet::new();
        loop {
            let output = Output::create(&target, self.options.replaces)?;
            match self.write_pack(&output, &inputs, &as_bytes)? {
                Packed::Done { added, found, bytes } => {
                    let mode = found.first().and_then(|found| meta_of(Vec::new(), found).mode);
                    output.commit(&Meta { mode, ..Meta::default() })?;
                    inputs.iter().zip(&added).for_each(|(input, added)| self.note_damage(&input.path, added));
                    if self.options.removes {
                        for (input, found) in inputs.iter().zip(&found) {
                            remove(&input.path, found)?;
                        }
                    }
                    let members = inputs.into_iter().zip(added).collect();
                    return Ok(Done { output: target, output_bytes: bytes, members });
                }
                Packed::Wrong(number, error) => {
                    let input = usize::try_from(number).ok().and_then(|number| inputs.get(number));
                    match input {
                        Some(input) if as_bytes.insert(number) => self.warn_of(&input.path, &error),
                        _ => return Err(FileError::VerifyPack { path: target, error }),
                    }
                }
            }
        }
    }

    /// Writes a pack, and decodes it as it grows.
    fn write_pack(&self, output: &Output, inputs: &[Input], as_bytes: &BTreeSet<u64>) -> Result<Packed> {
        let largest =
            inputs.iter().filter_map(|input| fs::metadata(&input.path).ok()).map(|found| found.len());
        let options = self.options.write_options(FileForm::Pack, largest.max().unwrap_or(0));
        let writer = Writer::new(BufWriter::new(output.file()), options);
        let mut growing = Growing { writer, added: Vec::new(), found: Vec::new() };
        // The verifying thread lags by at most two members.
        let (sender, receiver) = mpsc::sync_channel(1);
        let written = std::thread::scope(|scope| {
            let verifier = scope.spawn(|| first_wrong_member(output.temporary(), receiver));
            let sender = self.options.verifies.then_some(sender);
            let added = growing.add_all(self, inputs, as_bytes, sender);
            let wrong = verifier.join().map_err(|_| VerifyError::Panic)?;
            added.map(|()| wrong)
        });
        if let Some((number, error)) = written? {
            return Ok(Packed::Wrong(number, error));
        }
        let Growing { writer, added, found } = growing;
        writer.finish()?;
        let bytes = output.file().metadata()?.len();
        if self.options.verifies {
            let index = Reader::open(output.file(), own_limits())?.index()?;
            if !index.iter().eq(added.iter().map(|added| &added.entry)) {
                return Err(VerifyError::OtherIndex.into());
            }
        }
        Ok(Packed::Done { added, found, bytes })
    }
}

enum Packed {
    Done {
        added: Vec<Added>,
        found: Vec<Metadata>,
        bytes: u64,
    },
    /// A member does not decode to the original's bytes.
    Wrong(u64, VerifyError),
}

/// A pack that is being written, and its members so far.
struct Growing<'f> {
    writer: Writer<BufWriter<&'f File>>,
    added: Vec<Added>,
    found: Vec<Metadata>,
}

impl Growing<'_> {
    /// Adds the files. Each member goes to the verifying thread, if there is one. If that thread has stopped,
    /// a member was wrong, and no more members are added.
    fn add_all(
        &mut self,
        compressor: &Compressor<'_>,
        inputs: &[Input],
        as_bytes: &BTreeSet<u64>,
        verifier: Option<SyncSender<Added>>,
    ) -> Result<()> {
        for (number, input) in inputs.iter().enumerate() {
            let (mut source, found) = open(&input.path)?;
            let meta = meta_of(input.relative.as_os_str().as_bytes().to_vec(), &found);
            let mut counted = Counted::new(&mut source, found.len(), compressor.advance);
            let added = self.writer.add(meta, as_bytes.contains(&(number as u64)), &mut counted);
            let added = added.map_err(|error| FileError::Compress { path: input.path.clone(), error })?;
            compressor.warn_of_failure(&input.path, &added);
            if let Some(verifier) = &verifier {
                self.writer.flush()?;
                if verifier.send(added.clone()).is_err() {
                    return Ok(());
                }
            }
            self.added.push(added);
            self.found.push(found);
        }
        Ok(())
    }
}

/// Decodes members of a growing pack as they arrive. Returns the first that differs from its original, and
/// stops there.
fn first_wrong_member(pack: &Path, members: Receiver<Added>) -> Option<(u64, VerifyError)> {
    let mut reader: Option<Reader<File>> = None;
    for added in members {
        let verified = match &mut reader {
            Some(reader) => {
                reader.look_again().map_err(VerifyError::from).and_then(|()| verify_member(reader, &added))
            }
            none => File::open(pack)
                .map_err(VerifyError::from)
                .and_then(|file| Ok(Reader::open(file, own_limits())?))
                .and_then(|opened| verify_member(none.insert(opened), &added)),
        };
        if let Err(error) = verified {
            return Some((added.entry.head.number, error));
        }
    }
    None
}

/// Compresses the files of a folder to one pack, and verifies it: decompresses each file from the pack and
/// compares it. Returns the pack's size in bytes. `report` receives each warning as a line.
///
/// # Errors
/// A file cannot be read, or the pack cannot be written or does not decode to the files.
pub fn pack_folder(
    folder: &Path,
    target: &Path,
    options: &CompressOptions,
    report: &(dyn Fn(&str) + Sync),
) -> Result<u64> {
    let (inputs, errors) = gather(&[folder.to_owned()], report);
    if let Some(error) = errors.into_iter().next() {
        return Err(error);
    }
    let read = Inputs::default();
    let compressor = Compressor { options, read: &read, advance: &|_| (), report };
    Ok(compressor.pack(Some(target), inputs)?.output_bytes)
}

/// Sorts segments by cluster, timeline and LSN, so that segments that share pages are adjacent. The other
/// files follow by name, including segments that only their name identifies. Returns the segments' places,
/// too.
fn in_order(inputs: Vec<Input>) -> Result<(Vec<Input>, Places)> {
    let mut placed: Vec<(Option<Place>, Input)> =
        inputs.into_iter().map(|input| (Place::from_file(&input.path), input)).collect();
    placed.sort_by_cached_key(|(place, input)| {
        let key = place.map(|place| (place.system_id, place.timeline, place.start));
        (key.is_none(), key, input.relative.clone())
    });
    let (places, inputs): (Vec<Option<Place>>, Vec<Input>) = placed.into_iter().unzip();
    for pair in inputs.windows(2) {
        if let [one, other] = pair
            && one.relative == other.relative
        {
            return Err(FileError::SameName { one: one.path.clone(), other: other.path.clone() });
        }
    }
    let without_place = inputs.iter().zip(&places).filter(|(_, place)| place.is_none());
    let named = without_place.filter_map(|(input, _)| segment_name(&input.path)).collect();
    Ok((inputs, Places { known: places.into_iter().flatten().collect(), named }))
}

/// The places of a pack's segments in the WAL.
struct Places {
    /// Segments whose first page states their place.
    known: Vec<Place>,
    /// Segments with only a name to go by: damaged at their start, or filled with zeros.
    named: Vec<SegmentName>,
}

/// Returns the segment name of a file, if it has one.
fn segment_name(path: &Path) -> Option<SegmentName> {
    path.file_name().and_then(OsStr::to_str).and_then(SegmentName::parse)
}

/// The place of a segment in the WAL.
#[derive(Clone, Copy)]
struct Place {
    /// The cluster's system identifier.
    system_id: u64,
    /// Timeline and LSN in the first page's header. They differ from the name's if the segment was recycled
    /// or copied to a new timeline.
    timeline: Timeline,
    start: Lsn,
    size: SegmentSize,
    name: SegmentName,
}

impl Place {
    /// Returns the place of a file whose name and first page identify a segment.
    fn from_file(path: &Path) -> Option<Place> {
        let name = segment_name(path)?;
        let mut first = [0; LONG_HEADER];
        open(path).ok()?.0.read_exact(&mut first).ok()?;
        let info = StreamInfo::from_first_page(&first).ok()?;
        Some(Place {
            system_id: info.system_id,
            timeline: info.timeline,
            start: start_of(&first),
            size: info.segment_size,
            name,
        })
    }
}

/// Maximum number of gaps that are listed individually.
const MAX_GAPS: usize = 10;

impl Compressor<'_> {
    /// Warns about missing segments between the segments of a pack. The pack is valid without them, but
    /// recovery ends at the first missing segment.
    fn warn_of_gaps(&self, places: &Places) {
        let gaps = gaps(places);
        for gap in gaps.iter().take(MAX_GAPS) {
            (self.report)(&format!("warning: {gap}"));
        }
        if gaps.len() > MAX_GAPS {
            (self.report)(&format!("warning: there are {} more such gaps", gaps.len() - MAX_GAPS));
        }
    }
}

/// A segment's cluster, timeline, size and number.
type Numbered = (u64, Timeline, SegmentSize, u64);

/// Returns the named segments between two known segments of the same timeline.
fn named_between(names: &[SegmentName], before: Numbered, after: Numbered) -> Vec<Numbered> {
    let (system_id, timeline, size, first) = before;
    let is_gap = (system_id, timeline, size) == (after.0, after.1, after.2) && after.3 > first + 1;
    if !is_gap {
        return Vec::new();
    }
    let numbers = names.iter().filter(|name| name.timeline == timeline);
    let numbers = numbers.filter_map(|name| name.number(size));
    let between = numbers.filter(|number| (first + 1..after.3).contains(number));
    between.map(|number| (system_id, timeline, size, number)).collect()
}

/// Returns texts about the gaps between segments of the same timeline. Timelines are not compared with each
/// other: only history files, which may be missing, record how they are connected.
fn gaps(places: &Places) -> Vec<String> {
    let numbered = |place: &Place| {
        let number = place.name.number(place.size)?;
        Some((place.system_id, place.name.timeline, place.size, number))
    };
    let mut numbers: Vec<Numbered> = places.known.iter().filter_map(numbered).collect();
    numbers.sort_unstable();
    // A segment that is damaged at its start is not missing if its name puts it between two others.
    let named: Vec<_> =
        numbers.windows(2).flat_map(|pair| named_between(&places.named, pair[0], pair[1])).collect();
    numbers.extend(named);
    numbers.sort_unstable();
    let mut gaps = Vec::new();
    for pair in numbers.windows(2) {
        let ((system_id, timeline, size, before), after) = (pair[0], pair[1]);
        let is_same_log = (system_id, timeline, size) == (after.0, after.1, after.2);
        let missing = after.3.saturating_sub(before + 1);
        if !is_same_log || missing == 0 {
            continue;
        }
        let name = |number| SegmentName::new(timeline, number, size);
        let (first, last) = (name(before + 1), name(before + missing));
        gaps.push(match missing {
            1 => format!("segment {first} is missing in the pack"),
            _ => format!("segments {first} to {last} are missing in the pack, {missing} of them"),
        });
    }
    gaps
}

fn pack_target(folder: Option<&Path>, name: Option<&Path>, inputs: &[Input]) -> PathBuf {
    let beside = || inputs.first().and_then(|input| input.path.parent()).unwrap_or(Path::new(""));
    match (name, folder) {
        (Some(name), Some(folder)) => folder.join(name),
        (Some(name), None) => name.to_owned(),
        (None, folder) => {
            let is_segment =
                |name: &&OsStr| name.to_str().is_some_and(|name| SegmentName::parse(name).is_some());
            let names: Vec<&OsStr> = inputs.iter().filter_map(|input| input.path.file_name()).collect();
            // A segment damaged at its start follows the others in the pack, regardless of its place in the
            // WAL.
            let segments = || names.iter().copied().filter(is_segment);
            let first = segments().min().or(names.first().copied());
            let last = segments().max().or(names.last().copied());
            let mut name = OsString::from(first.unwrap_or_default());
            if let Some(last) = last.filter(|last| *last != name) {
                name.push("-");
                name.push(last);
            }
            name.push(".");
            name.push(PACK_ENDING);
            folder.unwrap_or_else(beside).join(name)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_between_others_of_the_same_log_are_missing() {
        let place = |system_id, name: &str| {
            let name = SegmentName::parse(name).unwrap();
            let (timeline, start, size) = (1, Lsn(0), SegmentSize::DEFAULT);
            Place { system_id, timeline, start, size, name }
        };
        let numbers = |all: &[u64]| {
            let name = |number: &u64| SegmentName::new(1, *number, SegmentSize::DEFAULT).to_string();
            let known = all.iter().map(|number| place(7, &name(number))).collect();
            Places { known, named: Vec::new() }
        };
        assert_eq!(gaps(&numbers(&[])), [""; 0]);
        // A segment may exist twice, in two folders.
        assert_eq!(gaps(&numbers(&[3, 1, 2, 2])), [""; 0]);
        assert_eq!(
            gaps(&numbers(&[1, 3, 4, 8])),
            [
                "segment 000000010000000000000002 is missing in the pack",
                "segments 000000010000000000000005 to 000000010000000000000007 are missing in the pack, 3 of them"
            ]
        );
        assert_eq!(gaps(&numbers(&[255, 257])), ["segment 000000010000000100000000 is missing in the pack"]);
        // Other clusters and timelines may start anywhere.
        let others = [(7, "000000010000000000000001"), (7, "000000020000000000000009")];
        let others = others.into_iter().chain([(8, "000000020000000000000020")]);
        let known = others.map(|(id, name)| place(id, name)).collect();
        assert_eq!(gaps(&Places { known, named: Vec::new() }), [""; 0]);
        // Segments that are known by name only: damaged ones, and one whose timeline has no segment with a
        // known size.
        let named = ["000000010000000000000002", "000000010000000000000006", "000000020000000000000007"];
        let named = named.map(|name| SegmentName::parse(name).unwrap()).to_vec();
        assert_eq!(
            gaps(&Places { named, ..numbers(&[1, 3, 4, 8]) }),
            [
                "segment 000000010000000000000005 is missing in the pack",
                "segment 000000010000000000000007 is missing in the pack"
            ]
        );
    }

    #[test]
    fn a_pack_is_named_by_its_first_and_last_segment() {
        let named = |names: &[&str]| {
            let input = |name: &&str| Input { path: Path::new("wal").join(name), relative: name.into() };
            let inputs: Vec<Input> = names.iter().map(input).collect();
            pack_target(None, None, &inputs)
        };
        // Damaged segments follow the others.
        let names = [1, 2, 3].map(|number| SegmentName::new(1, number, SegmentSize::DEFAULT).to_string());
        let [one, two, three] = names.each_ref().map(String::as_str);
        let whole = PathBuf::from(format!("wal/{one}-{three}.wpk"));
        assert_eq!(named(&[one, three, "00000002.history", two]), whole);
        assert_eq!(named(&[two, three, one]), whole);
        assert_eq!(named(&[one]), PathBuf::from(format!("wal/{one}.wpk")));
        assert_eq!(named(&["a", "b"]), PathBuf::from("wal/a-b.wpk"));
    }
}
