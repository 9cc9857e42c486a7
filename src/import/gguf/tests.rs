//! The tensor types, each against the numbers that the format's own package gives.

use std::path::Path;

use super::parse::Header;
use super::value::{Kind, Value};
use crate::quant::gguf::{TensorType, decode_row};

fn fixture(name: &str) -> Vec<u8> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/gguf-types");
    std::fs::read(folder.join(name)).expect("a fixture")
}

/// The 24 types of the reference: those kept with their bytes, those kept as INT8, those refused.
const SPLIT: [&str; 7] = ["Q4_0", "Q4_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K", "MXFP4"];
const FLOAT: [&str; 3] = ["F32", "F16", "BF16"];
const INT8: [&str; 6] = ["Q5_0", "Q5_1", "Q2_K", "Q3_K", "IQ4_NL", "IQ4_XS"];
const REFUSED: [&str; 8] =
    ["IQ1_S", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "TQ1_0", "TQ2_0"];

#[test]
fn every_type_gives_exactly_the_reference_numbers_or_is_refused() {
    let expected = fixture("expected.safetensors");
    let expected = safetensors::SafeTensors::deserialize(&expected).expect("safetensors");
    let names = FLOAT.iter().chain(&SPLIT).chain(&INT8).chain(&REFUSED);
    assert_eq!(names.clone().count(), expected.len());

    for name in names {
        let file = fixture(&format!("{name}.gguf"));
        let header = Header::parse(&file).expect("a valid file");
        let [tensor] = header.tensors.as_slice() else { panic!("one tensor") };
        assert_eq!((tensor.name, tensor.tensor_type.name()), ("t", *name));
        assert_eq!(tensor.shape, [8, 512]);
        let source = tensor.tensor_type;
        let bytes = &file[tensor.range.clone()];
        assert_eq!(source.bytes(8 * 512), Some(bytes.len() as u64), "{name}");

        let mut row = vec![0.0; 512];
        if REFUSED.contains(name) {
            assert_eq!(source.encoding(), None, "{name}");
            assert_eq!(decode_row(source, bytes, &mut row), None, "{name}");
            println!("{name:8} refused by name");
            continue;
        }
        let view = expected.tensor(name).expect("expected numbers");
        let numbers = view.data().as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b));
        let numbers: Vec<f32> = numbers.collect();
        for (row_bytes, numbers) in bytes.chunks(bytes.len() / 8).zip(numbers.chunks(512)) {
            decode_row(source, row_bytes, &mut row).expect("a whole row");
            let same = row.iter().zip(numbers).all(|(got, want)| got.to_bits() == want.to_bits());
            assert!(same, "{name}: a number differs");
        }
        let how = if INT8.contains(name) { "exact as INT8" } else { "exact" };
        assert_eq!(SPLIT.contains(name), source.splits(), "{name}");
        println!("{name:8} {how}");
    }
}

#[test]
fn rows_that_are_not_whole_blocks_are_not_decoded() {
    let mut row = [0.0; 33];

    assert_eq!(decode_row(TensorType::Q4_0, &[0; 18], &mut row), None);
    assert_eq!(decode_row(TensorType::Q4_0, &[0; 17], &mut row[..32]), None);
    assert_eq!(decode_row(TensorType::F64, &[0; 264], &mut row), None);
}

#[test]
fn metadata_of_every_value_type_is_read() {
    let file = fixture("F32.gguf");
    let header = Header::parse(&file).expect("a valid file");
    let value = |key: &str| header.value(key).expect("there");

    assert_eq!(value("x.u8"), Value::Unsigned(200, 8));
    assert_eq!(value("x.i8"), Value::Signed(-7, 8));
    assert_eq!(value("x.u16"), Value::Unsigned(65_000, 16));
    assert_eq!(value("x.i16"), Value::Signed(-300, 16));
    assert_eq!(value("x.u32"), Value::Unsigned(4_000_000_000, 32));
    assert_eq!(value("x.i32"), Value::Signed(-5, 32));
    assert_eq!(value("x.u64"), Value::Unsigned(1 << 63, 64));
    assert_eq!(value("x.i64"), Value::Signed(-(1 << 40), 64));
    assert_eq!(value("x.f32"), Value::F32(1.5));
    assert_eq!(value("x.f64"), Value::F64(0.1));
    assert_eq!(value("x.bool"), Value::Bool(true));
    assert_eq!(value("x.str"), Value::Text("naïve \u{2603} text"));
    let Value::Array(texts) = value("x.arr") else { panic!("a list") };
    assert_eq!(texts.kind, Kind::Text);
    let found: Vec<Value<'_>> = texts.values().collect();
    assert_eq!(found, [Value::Text("a"), Value::Text(""), Value::Text("é")]);
    let Value::Array(numbers) = value("x.ints") else { panic!("a list") };
    assert_eq!(numbers.values().filter_map(|value| value.as_u64()).sum::<u64>(), 6);
}
