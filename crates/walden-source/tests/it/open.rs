//! Compressed segments: read exactly, and never trusted.

use std::io::{self, Read, Write};
use std::path::Path;

use lz4_flex::frame::{BlockMode, BlockSize, FrameInfo};
use proptest::prelude::*;
use walden_source::open::{Compression, detect, open_path};

use crate::material::{COMPRESSIONS, Segment, compress, lz4, write};

fn read(path: &Path, compression: Compression) -> io::Result<Vec<u8>> {
    let mut content = Vec::new();
    open_path(path, compression)?.read_to_end(&mut content)?;
    Ok(content)
}

#[test]
fn every_compression_is_recognised_by_content_and_read_back() {
    let folder = tempfile::tempdir().unwrap();
    let content = Segment::new(1, 1).content();
    for compression in COMPRESSIONS.into_iter().chain([Compression::None]) {
        // The name is wrong.
        let path = write(folder.path(), "000000010000000000000001.gz", &compress(&content, compression));
        assert_eq!(detect(&path).unwrap(), Some(compression));
        assert_eq!(read(&path, compression).unwrap(), content, "{compression}");
    }
}

#[test]
fn several_frames_in_a_row_are_one_content() {
    let folder = tempfile::tempdir().unwrap();
    let content = Segment::new(1, 1).content();
    let (left, right) = content.split_at(300_000);
    for compression in COMPRESSIONS {
        if matches!(compression, Compression::Lzma | Compression::Brotli) {
            continue; // These have no frames.
        }
        let both = [compress(left, compression), compress(right, compression)].concat();
        let path = write(folder.path(), "both", &both);
        assert_eq!(read(&path, compression).unwrap(), content, "{compression}");
    }
}

#[test]
fn lz4_frames_of_every_form() {
    let folder = tempfile::tempdir().unwrap();
    let content = Segment::new(1, 1).content();
    let mut frames = Vec::new();
    for mode in [BlockMode::Independent, BlockMode::Linked] {
        for size in [BlockSize::Max64KB, BlockSize::Max256KB, BlockSize::Max1MB, BlockSize::Max4MB] {
            for checks in [false, true] {
                let info = FrameInfo::new().block_mode(mode).block_size(size).block_checksums(checks);
                let length = checks.then_some(content.len() as u64);
                let frame = lz4(&content, info.content_checksum(checks).content_size(length));
                let path = write(folder.path(), "frame", &frame);
                assert_eq!(detect(&path).unwrap(), Some(Compression::Lz4));
                assert_eq!(read(&path, Compression::Lz4).unwrap(), content, "{mode:?} {size:?} {checks}");
                frames.push(frame);
            }
        }
    }
    // Frames to skip between them, and the legacy format.
    let skip = [&[0x53, 0x2A, 0x4D, 0x18, 5, 0, 0, 0], b"hello".as_slice()].concat();
    let legacy_block = lz4_flex::block::compress(&content);
    let mut legacy = vec![0x02, 0x21, 0x4C, 0x18];
    for _ in 0..2 {
        legacy.extend((legacy_block.len() as u32).to_le_bytes());
        legacy.extend(&legacy_block);
    }
    let all = [skip.clone(), frames.concat(), skip.clone(), legacy.clone(), frames[0].clone(), legacy, skip]
        .concat();
    let path = write(folder.path(), "all", &all);
    assert_eq!(detect(&path).unwrap(), Some(Compression::Lz4));
    let plain = read(&path, Compression::Lz4).unwrap();
    assert_eq!(plain.len(), content.len() * (frames.len() + 5));
    assert!(plain.chunks(content.len()).all(|chunk| chunk == content));
}

#[test]
fn zstd_behind_a_frame_to_skip_is_recognised() {
    let folder = tempfile::tempdir().unwrap();
    let content = Segment::new(1, 1).content();
    let skip = [0x50, 0x2A, 0x4D, 0x18, 4, 0, 0, 0, 1, 2, 3, 4];
    let path =
        write(folder.path(), "skip", &[&skip, compress(&content, Compression::Zstd).as_slice()].concat());
    assert_eq!(detect(&path).unwrap(), Some(Compression::Zstd));
    assert_eq!(read(&path, Compression::Zstd).unwrap(), content);
}

#[test]
fn a_file_cut_anywhere_ends_early_and_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let content = &Segment::new(1, 1).content()[..65_536 * 3];
    for compression in COMPRESSIONS {
        let whole = compress(content, compression);
        // Every place near the ends, and some between.
        let places = (1..64).chain((64..whole.len()).step_by(1237)).chain(whole.len() - 64..whole.len());
        for len in places {
            let path = write(folder.path(), "cut", &whole[..len]);
            let error = read(&path, compression)
                .expect_err(&format!("{compression} cut at {len} of {}", whole.len()));
            assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof, "{compression} cut at {len}: {error}");
            let text = error.to_string();
            assert!(
                text.contains("cut: ") && text.contains("cut off") && text.contains("complete copy"),
                "{text}"
            );
        }
    }
    // Between two blocks of a frame, where only the missing end reveals it.
    let blocks =
        lz4(content, FrameInfo::new().block_size(BlockSize::Max64KB).block_mode(BlockMode::Independent));
    let first = 7 + 4 + u32::from_le_bytes(blocks[7..11].try_into().unwrap()) as usize;
    let path = write(folder.path(), "cut", &blocks[..first]);
    assert_eq!(read(&path, Compression::Lz4).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
}

#[test]
fn an_error_stays() {
    let folder = tempfile::tempdir().unwrap();
    let whole = compress(&Segment::new(1, 1).content(), Compression::Zstd);
    let path = write(folder.path(), "cut", &whole[..whole.len() / 2]);
    let mut reader = open_path(&path, Compression::Zstd).unwrap();
    let first = io::copy(&mut reader, &mut io::sink()).unwrap_err();
    for _ in 0..3 {
        let again = reader.read(&mut [0; 100]).unwrap_err();
        assert_eq!((again.kind(), again.to_string()), (first.kind(), first.to_string()));
    }
}

#[test]
fn windows_beyond_the_limit_are_refused_with_a_way_out() {
    let folder = tempfile::tempdir().unwrap();
    let content = Segment::new(1, 1).content();
    let mut encoder = zstd::stream::write::Encoder::new(Vec::new(), 1).unwrap();
    encoder.window_log(30).unwrap();
    encoder.long_distance_matching(true).unwrap();
    encoder.include_contentsize(false).unwrap();
    encoder.write_all(&content).unwrap();
    let path = write(folder.path(), "wide.zst", &encoder.finish().unwrap());
    let error = read(&path, Compression::Zstd).unwrap_err().to_string();
    assert!(error.contains("128 MB") && error.contains("zstd -d --long=31"), "{error}");
    assert!(detect(&path).unwrap_err().to_string().contains("128 MB"));

    let mut options = liblzma::stream::LzmaOptions::new_preset(0).unwrap();
    options.dict_size(1 << 28);
    let mut filters = liblzma::stream::Filters::new();
    filters.lzma2(&options);
    let stream =
        liblzma::stream::Stream::new_stream_encoder(&filters, liblzma::stream::Check::Crc32).unwrap();
    let mut wide = Vec::new();
    liblzma::read::XzEncoder::new_stream(content.as_slice(), stream).read_to_end(&mut wide).unwrap();
    let path = write(folder.path(), "wide.xz", &wide);
    let error = read(&path, Compression::Xz).unwrap_err().to_string();
    assert!(error.contains("128 MB") && error.contains("xz -d"), "{error}");
}

#[test]
fn bytes_after_the_end_are_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let content = Segment::new(1, 1).content();
    for compression in COMPRESSIONS {
        if compression == Compression::Lzma {
            continue; // It has no end that could be distinguished from the following bytes.
        }
        let bytes = [compress(&content, compression), b"what is this doing here?".to_vec()].concat();
        let path = write(folder.path(), "more", &bytes);
        let error = read(&path, compression).expect_err(&compression.to_string());
        assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{compression}: {error}");
    }
}

#[test]
fn what_is_not_there_is_named() {
    let error = open_path(Path::new("/no/such/segment"), Compression::Gzip).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::NotFound);
    assert!(error.to_string().starts_with("/no/such/segment: "), "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn damage_is_an_error_or_the_same_length_of_nonsense(
        which in 0..COMPRESSIONS.len(),
        flips in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
    ) {
        let folder = tempfile::tempdir().unwrap();
        let content = &Segment::new(1, 1).content()[..100_000];
        let mut bytes = compress(content, COMPRESSIONS[which]);
        for (at, with) in flips {
            let at = at.index(bytes.len());
            bytes[at] = with;
        }
        let path = write(folder.path(), "damaged", &bytes);
        // No panic, no hang, and at most as many bytes as a hundred kilobytes can decompress to.
        let mut reader = open_path(&path, COMPRESSIONS[which]).unwrap().take(1 << 30);
        if let Err(error) = io::copy(&mut reader, &mut io::sink()) {
            prop_assert!(error.to_string().contains("damaged: "), "{}", error);
        }
        let _ = detect(&path);
    }

    #[test]
    fn garbage_behind_a_signature_is_an_error(
        which in 0..COMPRESSIONS.len(),
        keep in 1..20usize,
        garbage in proptest::collection::vec(any::<u8>(), 0..4096),
    ) {
        let folder = tempfile::tempdir().unwrap();
        let good = compress(&Segment::new(1, 1).content()[..8192], COMPRESSIONS[which]);
        let bytes = [&good[..keep], &garbage].concat();
        let path = write(folder.path(), "garbage", &bytes);
        let mut reader = open_path(&path, COMPRESSIONS[which]).unwrap().take(1 << 30);
        let _ = io::copy(&mut reader, &mut io::sink());
        let _ = detect(&path);
    }
}
