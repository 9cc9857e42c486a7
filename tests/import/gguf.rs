//! GGUF files from outside: every type goes to pages and back, conventions are undone, lies are refused.

use std::path::{Path, PathBuf};

use proptest::prelude::*;
use thintensor::format::manifest::{Manifest, Tensor, Transform, permuted_row};
use thintensor::format::writer::WriteOptions;
use thintensor::format::{Archive, Geometry, Pages, Role, check, extract::extract, verify::verify};
use thintensor::import::{OpenOptions, Purpose, convert, gguf, open_source, open_with};
use thintensor::quant::Format;
use thintensor::quant::gguf::{TensorType, decode_row};

use crate::folder::{Tensors, read_pages, read_safetensors};
use crate::gguf_file::{File, Value, llama, text};

const BF16: [&str; 8] = ["BF16"; 8];

fn write(folder: &Path, name: &str, bytes: &[u8]) -> PathBuf {
    let path = folder.join(name);
    std::fs::write(&path, bytes).expect("written");
    path
}

/// What the refusal of a file says.
fn refusal(bytes: &[u8]) -> String {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let path = write(folder.path(), "m.gguf", bytes);
    gguf::fuzz(bytes);
    match open_source(&path, Purpose::Run) {
        Ok(_) => panic!("was not refused"),
        Err(error) => error.to_string(),
    }
}

fn assert_refused(bytes: &[u8], parts: &[&str]) {
    let refusal = refusal(bytes);
    for part in parts {
        assert!(refusal.contains(part), "'{part}' is not in: {refusal}");
    }
}

fn changed(change: impl FnOnce(&mut File)) -> Vec<u8> {
    let mut file = llama(BF16);
    change(&mut file);
    file.encode()
}

/// Converts, verifies and extracts a file; what `extract` gave.
fn round_trip(file: &File, dequantize: bool) -> (Tensors, Archive) {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let source = write(folder.path(), "m.gguf", &file.encode());
    let archive = folder.path().join("m.thin");
    let options = OpenOptions { dequantize, ..OpenOptions::new(Purpose::Convert) };
    let opened = open_with(&source, options).expect("opens");
    let write = WriteOptions {
        force: false,
        resume: false,
        progress: &|_| {},
        cancel: &std::sync::atomic::AtomicBool::new(false),
    };
    thintensor::format::writer::write(&*opened.pages, &archive, &write).expect("written");
    let report = verify(&archive, &|_| {}).expect("readable");
    assert!(report.ok, "{report:?}");
    let opened = Archive::open(&archive).expect("opens");
    let out = folder.path().join("out");
    extract(&opened, &out, false, &|_| {}).expect("extracted");
    let mut tensors = Tensors::new();
    read_safetensors(&out.join("m.gguf.safetensors"), &mut tensors);
    (tensors, opened)
}

#[test]
fn blocks_of_every_native_type_come_back_from_an_archive() {
    let types = ["Q8_0", "Q4_0", "Q4_1", "Q4_K", "Q5_K", "Q6_K", "Q6_K", "MXFP4"];
    let file = llama(types);

    let (extracted, archive) = round_trip(&file, false);

    assert!(archive.manifest().provenance.exact_storage_preserved);
    for tensor in &file.tensors {
        let (dtype, shape, bytes) = &extracted[&tensor.name];
        assert!(*bytes == tensor.bytes, "{}", tensor.name);
        if tensor.dims.len() == 2 {
            let rows = tensor.dims[1];
            assert_eq!((dtype.as_str(), shape), ("U8", &vec![rows, bytes.len() as u64 / rows]));
        }
    }
    // q, k and v are of three types, so of three groups.
    let qkv = archive.pages().iter().filter(|page| page.role == Role::AttnQkv);
    let formats: Vec<_> = qkv.map(|page| page.format.name()).collect();
    assert_eq!(formats, ["q4_0", "q4_1", "q4_k"]);
}

#[test]
fn int8_keeps_every_value_and_says_that_bytes_are_lost() {
    let types = ["Q5_0", "Q5_1", "Q2_K", "Q3_K", "IQ4_NL", "IQ4_XS", "IQ4_XS", "Q5_0"];
    let file = llama(types);

    let (extracted, archive) = round_trip(&file, false);

    assert!(!archive.manifest().provenance.exact_storage_preserved);
    for (tensor, name) in file.tensors.iter().zip(types) {
        let (dtype, shape, bytes) = &extracted[&tensor.name];
        let source = TensorType::from_name(name).expect("a type");
        let mut expected = vec![0.0; 256];
        for (row, bytes) in tensor
            .bytes
            .chunks(source.bytes(256).expect("whole blocks") as usize)
            .zip(bytes.chunks(1024))
        {
            decode_row(source, row, &mut expected).expect("a row");
            let expected: Vec<u8> = expected.iter().flat_map(|n| n.to_le_bytes()).collect();
            assert!(bytes == expected, "{}", tensor.name);
        }
        assert_eq!((dtype.as_str(), shape), ("F32", &vec![tensor.dims[1], 256]));
    }
}

#[test]
fn dequantizing_gives_the_tensors_of_a_folder_rounded_to_bf16() {
    let mut file = llama(["Q4_K", "Q4_0", "Q5_1", "BF16", "Q6_K", "Q8_0", "Q8_0", "Q2_K"]);
    // A norm that bf16 holds, and one that it does not.
    let ones = 1.0f32.to_le_bytes().repeat(256);
    file.tensor("blk.0.attn_norm.weight").bytes = ones;
    let third = (1.0f32 / 3.0).to_le_bytes().repeat(256);
    file.tensor("output_norm.weight").bytes = third;

    let (extracted, archive) = round_trip(&file, true);

    let provenance = &archive.manifest().provenance;
    assert!(!provenance.exact_storage_preserved);
    assert_eq!(provenance.profile, "dequantized-bf16");
    let q = &extracted["model.layers.0.self_attn.q_proj.weight"];
    assert_eq!((q.0.as_str(), q.1.as_slice()), ("BF16", &[256, 256][..]));
    let source = &file.tensors[1];
    let mut numbers = vec![0.0; 256];
    for row in 0..256u64 {
        // Head row r of a folder stands at 2r in the file, and at 2(r - 64) + 1 from the middle on.
        let at = permuted_row(128, row) as usize;
        assert_eq!(permuted_row(128, row), row / 128 * 128 + row % 64 * 2 + row % 128 / 64);
        decode_row(TensorType::Q4_0, &source.bytes[at * 144..(at + 1) * 144], &mut numbers)
            .expect("a row");
        let expected: Vec<u8> =
            numbers.iter().flat_map(|&n| half::bf16::from_f32(n).to_le_bytes()).collect();
        assert!(q.2[row as usize * 512..][..512] == expected, "row {row}");
    }
    assert_eq!(extracted["model.layers.0.input_layernorm.weight"].0, "BF16");
    assert_eq!(extracted["model.norm.weight"].0, "F32");
    assert_eq!(extracted["model.layers.0.self_attn.v_proj.weight"].2, file.tensors[3].bytes);
}

#[test]
fn r24_key_rows_are_permuted_within_their_own_heads() {
    let file = llama(BF16);

    let (extracted, archive) = round_trip(&file, false);

    for (name, heads) in [("blk.0.attn_q.weight", 2), ("blk.0.attn_k.weight", 1)] {
        let tensor = archive.manifest().tensors.iter().find(|tensor| tensor.name == name);
        let tensor = tensor.expect("listed");
        assert_eq!(tensor.transform, [Transform::RowPermutation { head_rows: 128 }]);
        assert_eq!(tensor.shape[0], heads * 128);
        assert!(
            extracted[name].2 == file.tensors.iter().find(|t| t.name == name).expect("there").bytes
        );
    }
    // 4 query heads and 2 key heads of 4 rows: every row stays in its head, and none is lost.
    for heads in [4u64, 2] {
        let rows: Vec<u64> = (0..heads * 4).map(|row| permuted_row(4, row)).collect();
        assert!(rows.iter().zip(0..).all(|(source, row)| source / 4 == row / 4));
        assert_eq!(rows[..4], [0, 2, 1, 3]);
    }
}

#[test]
fn r23_folder_and_file_give_the_same_pages() {
    for (name, roles) in
        [("llama", [Role::AttnQkv, Role::FfnGateUp]), ("qwen3", [Role::AttnQkv, Role::Embed])]
    {
        let folder = crate::folder::golden(name);
        let file = crate::folder::golden("").join(format!("../goldens-gguf/{name}.gguf"));
        let (folder, _) = open_source(&folder, Purpose::Run).expect("opens");
        let (file, _) = open_source(&file, Purpose::Run).expect("opens");
        let (of_folder, of_file) = (read_pages(&folder), read_pages(&file));
        for role in roles {
            let pages = |packed: &dyn Pages, stored: &[Vec<u8>]| -> Vec<Vec<u8>> {
                let pages = packed.pages().iter().zip(stored);
                pages
                    .filter(|(page, _)| page.role == role)
                    .map(|(_, bytes)| bytes.clone())
                    .collect()
            };
            assert!(pages(&folder, &of_folder) == pages(&file, &of_file), "{name} {role}");
        }
    }
}

#[test]
fn parts_of_a_model_are_read_together_and_checked() {
    let whole = llama(BF16);
    let folder = tempfile::tempdir().expect("a scratch folder");
    let part = |number: u32, tensors: std::ops::Range<usize>| {
        let mut file =
            if number == 0 { whole.clone() } else { File { alignment: 32, ..File::default() } };
        file.tensors = whole.tensors[tensors].to_vec();
        file.set("split.no", Value::Raw(2, (number as u16).to_le_bytes().to_vec()));
        file.set("split.count", Value::Raw(2, 2u16.to_le_bytes().to_vec()));
        file.set("split.tensors.count", Value::I32(11));
        file
    };
    let count = whole.tensors.len();
    let first = write(folder.path(), "m-00001-of-00002.gguf", &part(0, 0..5).encode());
    let says = |path: &Path| match open_source(path, Purpose::Run) {
        Ok(_) => "opened".to_owned(),
        Err(error) => error.to_string(),
    };
    assert!(says(&first).contains("part 2 of 2, but 'm-00002-of-00002.gguf' does not exist"));

    let second = write(folder.path(), "m-00002-of-00002.gguf", &part(1, 5..count).encode());
    for path in [&first, &second] {
        let (packed, _) = open_source(path, Purpose::Convert).expect("opens");
        assert_eq!(packed.manifest().tensors.len(), count);
        read_pages(&packed);
        packed.finish().expect("exact");
    }

    write(folder.path(), "m-00002-of-00002.gguf", &part(0, 5..count).encode());
    assert!(says(&first).contains("split.no: 0, but its name says 1"), "{}", says(&first));
    write(folder.path(), "m-00002-of-00002.gguf", &part(1, 4..count).encode());
    assert!(says(&first).contains("duplicate tensor name"), "{}", says(&first));
    write(folder.path(), "m-00002-of-00002.gguf", &part(1, 6..count).encode());
    assert!(
        says(&first).contains("split.tensors.count is 11, but the 2 parts have 10"),
        "{}",
        says(&first)
    );
    let alone = write(folder.path(), "alone.gguf", &part(0, 0..5).encode());
    assert!(says(&alone).contains("one of 2 parts"), "{}", says(&alone));
}

#[test]
fn metadata_that_no_family_here_has_is_refused_by_name() {
    let set = |key: &str, value: Value| changed(|file| file.set(key, value));
    assert_refused(&set("general.architecture", "rwkv6".into()), &["'rwkv6'", "llama, qwen2"]);
    assert_refused(&set("general.type", "adapter".into()), &["adapter"]);
    assert_refused(&set("llama.expert_count", Value::U32(8)), &["llama.expert_count", "8"]);
    assert_refused(&set("llama.rope.scaling.type", "longrope".into()), &["longrope"]);
    assert_refused(&set("llama.block_count", Value::U32(1 << 30)), &["1073741824", "4096"]);
    assert_refused(&set("llama.block_count", Value::F32(1.0)), &["llama.block_count", "FLOAT32"]);
    assert_refused(
        &set("llama.attention.head_count", Value::Ints(vec![2, 2])),
        &["2 entries", "1 layers"],
    );
    let both = changed(|file| {
        file.set("llama.attention.key_length", Value::U32(128));
        file.set("llama.attention.value_length", Value::U32(64));
    });
    assert_refused(&both, &["value_length is 64", "key_length is 128"]);
    assert_refused(&set("llama.vocab_size", Value::U32(5)), &["llama.vocab_size is 5", "is 4"]);
    assert_refused(
        &changed(|file| file.remove("llama.context_length")),
        &["'llama.context_length' is missing"],
    );
    assert_refused(
        &changed(|file| file.remove("general.architecture")),
        &["'general.architecture' is missing"],
    );
    assert_refused(
        &changed(|file| {
            file.tensors.remove(2);
        }),
        &["'blk.0.attn_k.weight' is missing"],
    );
    let refused = changed(|file| {
        let tensor = file.tensor("blk.0.ffn_down.weight");
        (tensor.code, tensor.bytes) = (16, vec![0; 66 * 256]);
    });
    assert_refused(&refused, &["blk.0.ffn_down.weight", "IQ2_XXS"]);
    assert_refused(
        &llama(["BF16", "BF16", "BF16", "BF16", "BF16", "Q4_0", "Q8_0", "BF16"]).encode(),
        &["ffn_gate.weight' is Q4_0", "ffn_up.weight' is Q8_0"],
    );
}

#[test]
fn lists_of_heads_and_widths_are_read_for_each_layer() {
    let bytes = changed(|file| {
        file.set("llama.attention.head_count", Value::Ints(vec![2]));
        file.set("llama.feed_forward_length", Value::Ints(vec![256]));
    });
    let folder = tempfile::tempdir().expect("a scratch folder");
    let path = write(folder.path(), "m.gguf", &bytes);

    let (packed, notes) = open_source(&path, Purpose::Run).expect("opens");

    assert_eq!(packed.manifest().spec["layers"][0]["num_attention_heads"], 2);
    assert!(notes.iter().any(|note| note.contains("token ids only")), "{notes:?}");
}

#[test]
fn r43_sizes_that_overflow_are_refused() {
    let dims = |dims: &[u64], code: u32| {
        changed(|file| {
            let tensor = file.tensor("blk.0.attn_q.weight");
            (tensor.dims, tensor.code) = (dims.to_vec(), code);
        })
    };
    assert_refused(&dims(&[u64::MAX, 2], 0), &["blk.0.attn_q.weight", "18446744073709551615"]);
    assert_refused(&dims(&[1152, 4_398_046_511_105], 8), &["blk.0.attn_q.weight", "takes 5,3"]);
    let hex = |text: &str| -> Vec<u8> {
        let digits: Vec<u8> = text.bytes().filter(|byte| *byte != b' ').collect();
        let pair = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).expect("hex"), 16);
        digits.chunks(2).map(|digits| pair(digits).expect("hex")).collect()
    };
    let many = hex("47475546 03000000 0000000000001000 0000000000000000");
    assert_refused(&many, &["4,503,599,627,370,496 tensors", "0 bytes follow"]);
    let key = hex("47475546 03000000 0000000000000000 0100000000000000 0000000000000040");
    assert_refused(&key, &["1 metadata entries", "8 bytes follow"]);
    let key = [key, vec![0; 32]].concat();
    assert_refused(&key, &["metadata key 0", "4,611,686,018,427,387,904"]);
}

#[test]
fn r44_counts_and_types_are_bounded_before_they_are_used() {
    for n_dims in [0u32, 5, 9, u32::MAX] {
        let mut file = llama(BF16);
        file.tensors.truncate(1);
        let mut bytes = file.encode();
        let name = text("token_embd.weight");
        let at = bytes.windows(name.len()).position(|window| window == name).expect("there");
        bytes[at + name.len()..][..4].copy_from_slice(&n_dims.to_le_bytes());
        assert_refused(&bytes, &["token_embd.weight", &n_dims.to_string(), "1 to 4"]);
    }
    for alignment in [0u32, 3, 2_147_483_648] {
        let bytes = changed(|file| file.set("general.alignment", Value::U32(alignment)));
        assert_refused(&bytes, &["general.alignment", &alignment.to_string()]);
    }
    let bytes = changed(|file| file.set("general.alignment", Value::I32(32)));
    assert_refused(&bytes, &["general.alignment", "UINT32", "INT32"]);

    let raw =
        |code: u32, bytes: &[u8]| changed(|file| file.set("x", Value::Raw(code, bytes.to_vec())));
    let list = |code: u32, len: u64| [&code.to_le_bytes()[..], &len.to_le_bytes()].concat();
    assert_refused(&raw(9, &list(8, 1 << 61)), &["'x'", "2,305,843,009,213,693,952 elements"]);
    assert_refused(&raw(9, &[list(9, 1), list(4, 0)].concat()), &["'x'", "list of lists"]);
    assert_refused(&raw(99, &[]), &["'x'", "value type 99"]);
    assert_refused(&raw(9, &list(99, 0)), &["'x'", "value type 99"]);
    assert_refused(&raw(8, &[&2u64.to_le_bytes()[..], &[0xff, 0xfe]].concat()), &["'x'", "UTF-8"]);
    assert_refused(&raw(8, &(1u64 << 62).to_le_bytes()), &["'x'", "4,611,686,018,427,387,904"]);
    assert_refused(&raw(7, &[2]), &["'x'", "BOOL of 2"]);

    let mut big_endian = llama(BF16).encode();
    big_endian[4..8].copy_from_slice(&3u32.to_be_bytes());
    assert_refused(&big_endian, &["big-endian (version 3)"]);
    for version in [0u32, 1, 4] {
        let mut bytes = llama(BF16).encode();
        bytes[4..8].copy_from_slice(&version.to_le_bytes());
        assert_refused(&bytes, &[&format!("version {version}")]);
    }
}

#[test]
fn tensors_that_lie_about_their_place_are_refused() {
    let at =
        |name: &'static str, offset: u64| changed(|file| file.tensor(name).offset = Some(offset));
    assert_refused(&at("blk.0.attn_q.weight", 0), &["they overlap", "blk.0.attn_q.weight"]);
    assert_refused(
        &at("blk.0.attn_q.weight", 7),
        &["blk.0.attn_q.weight", "byte 7", "multiple of 32"],
    );
    assert_refused(
        &at("output_norm.weight", 1 << 40),
        &["output_norm.weight", "1,099,511,627,776"],
    );
    assert_refused(&at("output_norm.weight", !31), &["output_norm.weight", "bytes of tensors"]);
    assert_refused(
        &changed(|file| file.tensors[1].name = "token_embd.weight".into()),
        &["duplicate tensor name 'token_embd.weight'"],
    );
    assert_refused(
        &changed(|file| file.tensors[1].name = String::new()),
        &["tensor 1", "empty name"],
    );
    assert_refused(
        &changed(|file| file.metadata.push(("general.architecture".into(), "x".into()))),
        &["general.architecture", "twice"],
    );
    assert_refused(
        &changed(|file| file.tensors[1].dims = vec![0, 256]),
        &["impossible", "[0, 256]"],
    );
    assert_refused(&changed(|file| file.tensors[1].code = 77), &["type 77"]);
    assert_refused(
        &changed(|file| (file.tensors[1].code, file.tensors[1].dims) = (2, vec![100, 1])),
        &["rows of 100", "blocks of 32"],
    );
    let whole = llama(BF16).encode();
    for len in [0, 3, 7, 15, 23, 100, 900, whole.len() - 1] {
        let refusal = refusal(&whole[..len]);
        assert!(refusal.contains("m.gguf"), "{len}: {refusal}");
    }
}

#[test]
fn a_manifest_that_lies_about_planes_or_rows_is_refused() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let types = ["Q8_0", "Q4_0", "Q4_0", "Q4_0", "Q5_1", "Q6_K", "Q6_K", "BF16"];
    let path = write(folder.path(), "m.gguf", &llama(types).encode());
    let (packed, _) = open_source(&path, Purpose::Convert).expect("opens");
    let good = packed.manifest();
    let lie = |change: &dyn Fn(&mut Manifest)| {
        let mut manifest = good.clone();
        change(&mut manifest);
        let findings = check::contents(&manifest, packed.pages());
        findings.first().map(ToString::to_string).expect("a finding")
    };
    let tensor = |manifest: &mut Manifest, name: &str, change: &dyn Fn(&mut Tensor)| {
        let found = manifest.tensors.iter_mut().find(|tensor| tensor.name == name);
        change(found.expect("listed"));
    };
    let of = |name: &'static str, change: &dyn Fn(&mut Tensor)| {
        lie(&|manifest| tensor(manifest, name, change))
    };
    let geometry = |format: Format, change: &dyn Fn(&mut Geometry)| {
        lie(&|manifest| {
            let mut known = manifest.descriptors.iter_mut();
            change(known.find(|known| known.format == format).expect("there"));
        })
    };
    assert_eq!(check::contents(good, packed.pages()), []);
    let (q, down) = ("blk.0.attn_q.weight", "blk.0.ffn_down.weight");
    let split = |layout| Transform::PlaneSplit { layout };
    let heads = |head_rows| Transform::RowPermutation { head_rows };

    for lies in [
        vec![],
        vec![split(Format::Q4_1)],
        vec![heads(128)],
        vec![split(Format::Q4_0), heads(128)],
        vec![heads(128), heads(128), split(Format::Q4_0)],
        vec![heads(0), split(Format::Q4_0)],
        vec![heads(3), split(Format::Q4_0)],
        vec![heads(100), split(Format::Q4_0)],
        vec![heads(1 << 40), split(Format::Q4_0)],
        vec![Transform::Int8Groups { source_type: "Q5_0".into() }],
    ] {
        let found = of(q, &|tensor| tensor.transform = lies.clone());
        assert!(found.contains(q), "{lies:?}: {found}");
    }
    assert!(of(q, &|tensor| tensor.dtype = "Q4_1".into()).contains(q));
    assert!(of(q, &|tensor| tensor.dtype = "IQ2_XXS".into()).contains("IQ2_XXS"));
    assert!(of(q, &|tensor| tensor.shape = vec![256, 255]).contains(q));
    assert!(of(q, &|tensor| tensor.pieces[0].plane = 1).contains(q));
    assert!(of(down, &|tensor| tensor.transform = vec![split(Format::BF16)]).contains(down));
    let out = "blk.0.attn_output.weight";
    let int8 = |name: &str| vec![Transform::Int8Groups { source_type: name.into() }];
    assert!(of(out, &|tensor| tensor.transform = int8("Q5_0")).contains(out));
    assert!(of(out, &|tensor| tensor.transform = int8("Q4_0")).contains(out));
    assert!(of(out, &|tensor| tensor.dtype = "BF16".into()).contains(out));

    for found in [
        geometry(Format::Int8, &|known| known.quantization.group_size = Some(64)),
        geometry(Format::Int8, &|known| known.quantization.zero_point = false),
        geometry(Format::Int8, &|known| known.quantization.group_size = None),
        geometry(Format::Q6K, &|known| known.planes.swap(0, 1)),
        geometry(Format::Q6K, &|known| known.cols = 255),
        geometry(Format::Q6K, &|known| known.quantization.bits = 5),
        geometry(Format::Q8_0, &|known| {
            known.planes.pop();
        }),
        geometry(Format::Q4_0, &|known| known.format = Format::Mxfp4),
        geometry(Format::BF16, &|known| known.quantization.group_size = Some(32)),
    ] {
        assert!(found.contains("descriptor"), "{found}");
    }
}

#[test]
fn options_and_folders_that_have_no_blocks_say_so() {
    let folder = crate::folder::golden("llama");
    let options = OpenOptions { dequantize: true, ..OpenOptions::new(Purpose::Convert) };

    let error = open_with(&folder, options).err().expect("refused");

    assert!(error.to_string().contains("not a GGUF file"), "{error}");
}

#[test]
fn an_archive_of_a_file_is_the_same_every_time() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let source = write(folder.path(), "m.gguf", &llama(BF16).encode());
    let archive = |name: &str| {
        let options = WriteOptions {
            force: true,
            resume: false,
            progress: &|_| {},
            cancel: &std::sync::atomic::AtomicBool::new(false),
        };
        convert(&source, &folder.path().join(name), &options).expect("written");
        std::fs::read(folder.path().join(name)).expect("read")
    };

    assert!(archive("a.thin") == archive("b.thin"));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    #[test]
    fn any_file_near_a_right_one_is_read_or_refused(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        words in prop::collection::vec((any::<prop::sample::Index>(), any::<u64>()), 0..3),
        cut in prop::option::of(any::<prop::sample::Index>()),
    ) {
        let path = crate::folder::golden("").join("../goldens-gguf/llama-tied.gguf");
        let mut bytes = std::fs::read(path).expect("a fixture");
        // The front of the file is its first 6,312 bytes; the rest is numbers.
        for (at, byte) in changes {
            let at = at.index(6_312);
            bytes[at] = byte;
        }
        for (at, word) in words {
            let at = at.index(6_304);
            bytes[at..at + 8].copy_from_slice(&word.to_le_bytes());
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        gguf::fuzz(&bytes);
    }

    #[test]
    fn any_bytes_behind_the_magic_are_read_or_refused(rest in prop::collection::vec(any::<u8>(), 0..200)) {
        gguf::fuzz(&[b"GGUF\x03\0\0\0", rest.as_slice()].concat());
        gguf::fuzz(&rest);
    }
}
