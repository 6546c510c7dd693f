//! Compressed files as sources: every command produces the same result as from the segments themselves.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::material::{Run, explain_json, golden, walden, write};

walden_testing::tests! {
    explain_reads_the_same_from_segments_single_files_and_packs,
    a_single_file_is_a_source_under_any_name,
    segments_in_a_pack_and_beside_it_are_duplicates,
    whatif_and_redo_read_packs,
    a_damaged_pack_is_reported_by_its_name,
}

/// Segments as plain files, each as a `.wlz`, and together as a `.wpk`.
struct Forms {
    folder: tempfile::TempDir,
}

impl Forms {
    fn new(version: &str, options: &[&str]) -> Forms {
        let forms = Forms { folder: tempfile::tempdir().unwrap() };
        for (name, content) in golden(version) {
            write(&forms.segments(), &name, &content);
        }
        let (segments, singles, packs) = (forms.segments(), forms.singles(), forms.packs());
        fs::create_dir_all(&packs).unwrap();
        let compress = |arguments: &[&Path]| {
            let mut all = vec![PathBuf::from("compress")];
            all.extend(options.iter().map(PathBuf::from));
            all.extend(arguments.iter().map(|argument| argument.to_path_buf()));
            let run = walden(&all);
            assert_eq!(run.code, 0, "{run:?}");
        };
        compress(&[Path::new("--output"), &singles, &segments]);
        compress(&[Path::new("--pack"), Path::new("--output"), &packs, &segments]);
        forms
    }

    fn segments(&self) -> PathBuf {
        self.folder.path().join("segments")
    }

    fn singles(&self) -> PathBuf {
        self.folder.path().join("singles")
    }

    fn packs(&self) -> PathBuf {
        self.folder.path().join("packs")
    }

    /// Returns the only file with an extension in a folder.
    fn file(folder: &Path, ending: &str) -> PathBuf {
        let mut files: Vec<PathBuf> = walk(folder);
        files.retain(|path| path.extension().is_some_and(|extension| extension == ending));
        files.sort();
        files.remove(0)
    }
}

fn walk(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { walk(&path) } else { vec![path] }).collect()
}

fn explain_reads_the_same_from_segments_single_files_and_packs() {
    for version in ["17.11", "18.6"] {
        let forms = Forms::new(version, &[]);
        let pack = Forms::file(&forms.packs(), "wpk");
        for options in
            [&["--threads", "1"][..], &["--threads", "3"], &["--by", "xid", "--by", "relation,record"]]
        {
            let explained = |source: &Path| {
                let arguments: Vec<PathBuf> =
                    options.iter().map(PathBuf::from).chain([source.to_path_buf()]).collect();
                explain_json(&arguments)
            };
            let expected = explained(&forms.segments());
            assert_eq!(explained(&forms.singles()), expected, "{version} {options:?}");
            assert_eq!(explained(&forms.packs()), expected, "{version} {options:?}");
            assert_eq!(explained(&pack), expected, "{version} {options:?}");
        }
    }
}

fn a_single_file_is_a_source_under_any_name() {
    let forms = Forms::new("17.11", &[]);
    let file = Forms::file(&forms.singles(), "wlz");
    let renamed = forms.folder.path().join("saved.bin");
    fs::copy(&file, &renamed).unwrap();
    assert_eq!(explain_json(&[&renamed]), explain_json(&[&forms.segments()]));
}

fn segments_in_a_pack_and_beside_it_are_duplicates() {
    let forms = Forms::new("18.6", &[]);
    let run = walden(&[
        Path::new("explain"),
        Path::new("--format"),
        Path::new("json"),
        &forms.segments(),
        &forms.packs(),
    ]);
    assert_eq!(run.code, 0, "{run:?}");
    assert_eq!(run.json(), explain_json(&[&forms.segments()]));
    assert_eq!(run.stderr.matches("holds the same segment").count(), 3, "{}", run.stderr);
}

/// Removes values that depend on a run's duration, or on file names.
fn without_times(mut json: Value) -> Value {
    fn strip(value: &mut Value) {
        match value {
            Value::Object(map) => {
                map.retain(|name, _| {
                    !["seconds", "recovery", "rate", "path", "file", "notes"]
                        .iter()
                        .any(|part| name.contains(part))
                });
                map.values_mut().for_each(strip);
            }
            Value::Array(values) => values.iter_mut().for_each(strip),
            _ => {}
        }
    }
    strip(&mut json);
    json
}

fn whatif_and_redo_read_packs() {
    let forms = Forms::new("17.11", &[]);
    let pack = Forms::file(&forms.packs(), "wpk");
    let commands: [&[&str]; 2] = [
        &["whatif", "--format", "json", "--set", "full_page_writes=off"],
        &["redo", "check", "--format", "json"],
    ];
    for command in commands {
        let of = |source: &Path| {
            let arguments: Vec<PathBuf> =
                command.iter().map(PathBuf::from).chain([source.to_path_buf()]).collect();
            let run: Run = walden(&arguments);
            run.assert_no_panic();
            let json: Value =
                serde_json::from_str(&run.stdout).unwrap_or_else(|error| panic!("{error}: {run:?}"));
            (run.code, without_times(json))
        };
        let expected = of(&forms.segments());
        assert_eq!(of(&pack), expected, "{command:?}");
        assert_eq!(of(&forms.singles()), expected, "{command:?}");
    }
}

fn a_damaged_pack_is_reported_by_its_name() {
    let forms = Forms::new("18.6", &[]);
    let pack = Forms::file(&forms.packs(), "wpk");
    let intact = fs::read(&pack).unwrap();
    let records = explain_json(&[&pack])["records"].as_u64().unwrap();
    for part in 1..12 {
        let mut content = intact.clone();
        let at = content.len() * part / 12;
        content[at] ^= 0x10;
        fs::write(&pack, &content).unwrap();
        let run = walden(&[Path::new("explain"), Path::new("--format"), Path::new("json"), &pack]);
        run.assert_no_panic();
        assert_ne!(run.code, 0, "{at}: {run:?}");
        assert!(run.stderr.contains(&*pack.to_string_lossy()), "{at}: {run:?}");
        if run.code == 3 && !run.stdout.is_empty() {
            assert!(run.json()["records"].as_u64().unwrap() < records, "{at}");
        }
    }
}
