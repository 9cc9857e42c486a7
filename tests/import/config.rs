//! What a config.json may say: the two forms in the wild, every rule of the families, and every lie.

use serde_json::{Value, json};
use thintensor::model::{Activation, LayerSpec, ModelSpec, RopeScaling};

use crate::folder::Folder;

fn spec(folder: &Folder) -> ModelSpec {
    use thintensor::format::Pages;

    let (packed, _) = folder.open().unwrap_or_else(|error| panic!("{error}"));
    ModelSpec::from_json(&packed.manifest().spec).expect("a spec")
}

/// The reference checkpoint with one key of its config changed.
fn with(golden: &str, key: &str, value: Value) -> Folder {
    let folder = Folder::copy_of(golden);
    folder.set(key, value);
    folder
}

fn without(golden: &str, key: &str) -> Folder {
    let folder = Folder::copy_of(golden);
    folder.unset(key);
    folder
}

fn each<T>(folder: &Folder, field: impl Fn(&LayerSpec) -> T) -> Vec<T> {
    spec(folder).layers.iter().map(field).collect()
}

fn windows(folder: &Folder) -> Vec<Option<u32>> {
    each(folder, |layer| layer.sliding_window)
}

fn scaling(folder: &Folder) -> RopeScaling {
    spec(folder).ropes[0].scaling.clone()
}

fn assert_refused(folder: &Folder, parts: &[&str]) {
    let refusal = folder.refusal();
    for part in parts {
        assert!(refusal.contains(part), "'{part}' is not in: {refusal}");
    }
    assert!(refusal.contains("config.json"), "the file is not named: {refusal}");
}

#[test]
fn both_forms_of_positions_mean_the_same() {
    let older = spec(&Folder::copy_of("llama"));
    let newer = Folder::copy_of("llama");
    newer.unset("rope_scaling");
    newer.unset("rope_theta");
    newer.set(
        "rope_parameters",
        json!({"rope_theta": 500000, "rope_type": "llama3", "factor": 8, "high_freq_factor": 4,
            "low_freq_factor": 1, "original_max_position_embeddings": 64.0}),
    );

    assert_eq!(spec(&newer), older);
    assert!(matches!(older.ropes[0].scaling, RopeScaling::Llama3 { factor: 8.0, .. }));
}

#[test]
fn specs_of_the_goldens_follow_their_configs() {
    let llama = spec(&Folder::copy_of("llama-bias-linear"));
    assert_eq!(llama.ropes[0].scaling, RopeScaling::Linear { factor: 4.0 });
    assert!(
        llama.layers.iter().all(|layer| layer.qkv_bias && layer.attn_out_bias && layer.mlp_bias)
    );
    let mistral = spec(&Folder::copy_of("mistral"));
    assert_eq!(mistral.layers[2].head_dim, 24);
    assert_eq!(mistral.layers[2].attention_scale, 24f64.powf(-0.5) as f32);
    assert_eq!(windows(&Folder::copy_of("mistral")), [Some(32); 3]);
    let qwen2 = spec(&Folder::copy_of("qwen2"));
    assert!(qwen2.layers.iter().all(|layer| layer.qkv_bias && !layer.attn_out_bias));
    assert!(qwen2.tie_word_embeddings);
    let qwen3 = spec(&Folder::copy_of("qwen3"));
    assert!(qwen3.layers.iter().all(|layer| layer.qk_norm && layer.head_dim == 32));
    let smollm3 = Folder::copy_of("smollm3");
    let positions = [Some(0), Some(0), Some(0), None, Some(0)];
    assert_eq!(each(&smollm3, |layer| layer.rope), positions);
    let phi3 = spec(&Folder::copy_of("phi3"));
    assert_eq!((phi3.norm.eps, phi3.hidden_act), (1e-5, Activation::Silu));
}

#[test]
fn head_width_may_be_absent_or_null() {
    assert_eq!(spec(&Folder::copy_of("llama-tied")).layers[0].head_dim, 16);
    assert_eq!(spec(&with("llama-tied", "head_dim", Value::Null)).layers[0].head_dim, 16);
    let odd = without("llama-bias-linear", "head_dim");
    odd.set("num_attention_heads", json!(5));
    assert_refused(&odd, &["head_dim is absent", "64", "5"]);
    // The configuration class of this family says 128, and the weights then disagree.
    let refusal = without("qwen3", "head_dim").refusal();
    assert!(refusal.contains("head_dim") && refusal.contains("128"), "{refusal}");
}

#[test]
fn key_value_heads_are_all_heads_where_absent() {
    let folder = without("llama-bias-linear", "num_key_value_heads");

    assert_eq!(each(&folder, |layer| layer.num_key_value_heads), [4, 4]);
    assert_eq!(each(&Folder::copy_of("llama-tied"), |layer| layer.num_key_value_heads), [1, 1]);
}

#[test]
fn tying_takes_the_default_of_the_family() {
    assert!(spec(&without("smollm3", "tie_word_embeddings")).tie_word_embeddings);
    assert!(!spec(&without("llama", "tie_word_embeddings")).tie_word_embeddings);
    let refusal = without("llama-tied", "tie_word_embeddings").refusal();
    assert!(refusal.contains("'lm_head.weight' is missing"), "{refusal}");
}

#[test]
fn windows_follow_the_rules_of_each_family() {
    assert_eq!(windows(&Folder::copy_of("qwen2")), [None; 3]);
    assert_eq!(windows(&Folder::copy_of("qwen2-swa")), [None, None, Some(32), Some(32)]);
    let explicit = with(
        "qwen2-swa",
        "layer_types",
        json!(["sliding_attention", "full_attention", "full_attention", "sliding_attention"]),
    );
    assert_eq!(windows(&explicit), [Some(32), None, None, Some(32)]);
    assert_eq!(windows(&with("mistral", "sliding_window", Value::Null)), [None; 3]);
    assert_eq!(windows(&without("mistral", "sliding_window")), [Some(4096); 3]);
    assert_eq!(windows(&with("phi3", "sliding_window", json!(2047.0))), [Some(2047); 3]);
    let smollm3 = with("smollm3", "use_sliding_window", json!(true));
    smollm3.set("sliding_window", json!(8));
    smollm3.unset("layer_types");
    assert_eq!(windows(&smollm3), [None, None, None, Some(8), None]);
}

#[test]
fn layer_types_that_contradict_the_rest_are_refused() {
    let sliding = |golden, layers: usize| {
        with(golden, "layer_types", json!(vec!["sliding_attention"; layers]))
    };
    assert_refused(&sliding("llama", 3), &["layer_types", "llama"]);
    assert_refused(&sliding("qwen2", 3), &["layer_types", "qwen2"]);
    assert_refused(
        &sliding("mistral", 2),
        &["layer_types has 2 entries", "num_hidden_layers is 3"],
    );
    let chunked = with("llama", "layer_types", json!(["chunked_attention", 1, 2]));
    assert_refused(&chunked, &["layer_types", "chunked_attention"]);
}

#[test]
fn layers_without_positions_are_every_fourth_or_as_listed() {
    let positions = |folder: &Folder| each(folder, |layer| layer.rope.is_some());

    assert_eq!(positions(&without("smollm3", "no_rope_layers")), [true, true, true, false, true]);
    let second = without("smollm3", "no_rope_layers");
    second.set("no_rope_layer_interval", json!(2));
    assert_eq!(positions(&second), [true, false, true, false, true]);
    let zero = without("smollm3", "no_rope_layers");
    zero.set("no_rope_layer_interval", json!(0));
    assert_refused(&zero, &["no_rope_layer_interval"]);
    assert_refused(&with("smollm3", "no_rope_layers", json!([1, 0])), &["no_rope_layers has 2"]);
    let two = with("smollm3", "no_rope_layers", json!([1, 1, 2, 1, 1]));
    assert_refused(&two, &["no_rope_layers", "not 2"]);
}

#[test]
fn yarn_reads_every_setting_and_its_defaults() {
    let yarn = |change: Value| {
        let folder = Folder::copy_of("qwen2-yarn");
        let mut scaling = json!({"type": "yarn", "factor": 4.0});
        for (key, value) in change.as_object().expect("an object") {
            scaling[key] = value.clone();
        }
        folder.set("rope_scaling", scaling);
        folder
    };
    let found = |change| match scaling(&yarn(change)) {
        RopeScaling::Yarn {
            factor,
            original_max_position_embeddings: original,
            beta_fast,
            beta_slow,
            truncate,
            attention_factor,
        } => (factor, original, beta_fast, beta_slow, truncate, attention_factor),
        other => panic!("{other:?}"),
    };

    // 0.1 ln 4 + 1
    let default = 0.1 * 4f64.ln() + 1.0;
    assert_eq!(found(json!({})), (4.0, 64, 32.0, 1.0, true, default));
    let given = json!({"original_max_position_embeddings": 32, "beta_fast": 16, "beta_slow": 2,
        "truncate": false, "attention_factor": 1.5, "rope_type": "yarn"});
    assert_eq!(found(given), (4.0, 32, 16.0, 2.0, false, 1.5));
    assert_eq!(found(json!({"mscale": 1.0, "mscale_all_dim": 1.0})).5, 1.0);
    // Without a factor: 64 trained positions of originally 16.
    let ratio = found(json!({"factor": null, "original_max_position_embeddings": 16}));
    assert_eq!(ratio.0, 4.0);
    assert_refused(&yarn(json!({"factor": null})), &["rope_scaling.factor is missing"]);
    assert_refused(&yarn(json!({"attn_factor": 2})), &["rope_scaling.attn_factor: 2"]);
    assert_refused(&yarn(json!({"rope_type": "linear"})), &["rope_scaling.type", "linear"]);
}

#[test]
fn scalings_not_understood_are_refused_by_name() {
    let scaled = |value| with("llama", "rope_scaling", value);

    let dynamic = scaled(json!({"type": "dynamic", "factor": 2.0}));
    assert_refused(&dynamic, &["'dynamic'", "comes later"]);
    let longrope = json!({"type": "longrope", "short_factor": [1.0], "long_factor": [1.0]});
    assert_refused(&scaled(longrope.clone()), &["'longrope'", "comes later"]);
    assert_refused(&with("phi3", "rope_scaling", longrope), &["'longrope'", "comes later"]);
    assert_refused(&scaled(json!({"rope_type": "spiral"})), &["'spiral'", "supported: default"]);
    assert_refused(&scaled(json!({"factor": 2.0})), &["rope_scaling.rope_type is missing"]);
    assert_refused(&scaled(json!("linear")), &["rope_scaling must be an object"]);
    assert_refused(&scaled(json!({"type": "linear"})), &["rope_scaling.factor is missing"]);
    let text = json!({"type": "linear", "factor": "4"});
    assert_refused(&scaled(text), &["rope_scaling.factor", "\"4\""]);
    let per_type = json!({"full_attention": {"rope_type": "default", "rope_theta": 1e4}});
    assert_refused(&with("llama-sharded", "rope_parameters", per_type), &["full_attention"]);
    let sections = json!({"type": "default", "mrope_section": [2, 3, 3]});
    assert_refused(&scaled(sections), &["mrope_section"]);
}

#[test]
fn positions_stated_twice_must_agree() {
    let theta = with("llama-sharded", "rope_theta", json!(10000.0));
    assert_refused(&theta, &["rope_theta is 10000", "rope_parameters.rope_theta is 500000"]);
    let both = with("llama", "rope_parameters", json!({"rope_type": "default"}));
    assert_refused(&both, &["rope_scaling", "rope_parameters"]);
    let same = with("llama-sharded", "rope_theta", json!(500000));
    assert_eq!(spec(&same).ropes[0].rope_theta, 500_000.0);
}

#[test]
fn rotation_of_part_of_a_head_must_be_an_even_number_of_dimensions() {
    // head_dim 16
    assert_eq!(spec(&with("phi3", "partial_rotary_factor", json!(0.75))).ropes[0].rotary_dim, 12);
    for factor in [0.2, 0.0, -0.5, 1.5, 1e300] {
        let refused = with("phi3", "partial_rotary_factor", json!(factor));
        assert_refused(&refused, &["partial_rotary_factor", "head_dim 16"]);
    }
}

#[test]
fn rope_theta_takes_the_default_of_the_family() {
    for (family, rope_theta) in [("llama", 1e4), ("qwen2", 1e4), ("smollm3", 2e6)] {
        assert_eq!(
            spec(&without(family, "rope_theta")).ropes[0].rope_theta,
            rope_theta,
            "{family}"
        );
    }
}

#[test]
fn end_tokens_are_those_of_both_files_without_doubles() {
    let folder = with("llama", "eos_token_id", json!([2, 5]));
    folder.edit("generation_config.json", |generation| {
        generation.insert("eos_token_id".to_owned(), json!([5, 7, 2]));
    });
    assert_eq!(spec(&folder).eos_token_ids, [2, 5, 7]);
    assert_eq!(spec(&folder).bos_token_id, Some(1));

    let none = with("llama", "eos_token_id", Value::Null);
    none.remove("generation_config.json");
    assert_eq!(spec(&none).eos_token_ids, [0u32; 0]);
    assert_refused(&with("llama", "eos_token_id", json!(-1)), &["eos_token_id", "-1"]);
    assert_refused(&with("llama", "eos_token_id", json!(vec![1; 5000])), &["eos_token_id"]);
    let wrong = Folder::copy_of("llama");
    wrong.edit("generation_config.json", |generation| {
        generation.insert("eos_token_id".to_owned(), json!("</s>"));
    });
    assert_refused(&wrong, &["generation_config.json", "eos_token_id"]);
}

#[test]
fn r89_unsupported_families_are_refused_by_name_before_a_weight_is_read() {
    let folder = with("llama", "architectures", json!(["FooForCausalLM"]));
    folder.set("model_type", json!("foo"));
    folder.write("model.safetensors", "not a weight file");
    assert_refused(
        &folder,
        &[
            "FooForCausalLM (model_type 'foo') is not supported by this version",
            "(supported: llama, mistral, qwen2, qwen3, smollm3, phi3)",
        ],
    );
    let classifier = json!(["LlamaForSequenceClassification"]);
    assert_refused(
        &with("llama", "architectures", classifier),
        &["LlamaForSequenceClassification (model_type 'llama') is not supported"],
    );
    let mixed = with("llama", "model_type", json!("qwen3"));
    assert_refused(&mixed, &["LlamaForCausalLM (model_type 'qwen3') is not supported"]);
    let nameless = without("llama", "model_type");
    assert_eq!(spec(&nameless).model_type, "llama");
    nameless.unset("architectures");
    assert_refused(&nameless, &["model_type is missing"]);
}

#[test]
fn r51_quantised_sources_are_refused_by_method_before_a_weight_is_read() {
    for method in ["gptq", "awq", "bitsandbytes", "fp8", "mxfp4"] {
        let folder = with("llama", "quantization_config", json!({"quant_method": method}));
        folder.write("model.safetensors", "not a weight file");
        assert_refused(&folder, &["quantization_config", method]);
    }
    let unnamed = with("llama", "quantization_config", json!({"bits": 4}));
    assert_refused(&unnamed, &["an unnamed method"]);
    spec(&with("llama", "quantization_config", Value::Null));
}

#[test]
fn keys_that_change_arithmetic_are_refused_unless_neutral() {
    for (key, value) in [
        ("logit_scale", json!(0.0625)),
        ("attn_logit_softcapping", json!(50.0)),
        ("final_logit_softcapping", json!(30.0)),
        ("query_pre_attn_scalar", json!(256)),
        ("embedding_multiplier", json!(12.0)),
        ("residual_multiplier", json!(0.22)),
        ("attention_multiplier", json!(0.0156)),
        ("clip_qkv", json!(8.0)),
        ("use_qk_norm", json!(true)),
        ("num_local_experts", json!(8)),
        ("is_causal", json!(false)),
        ("no_rope_layers", json!([0, 1, 1])),
    ] {
        assert_refused(&with("llama", key, value.clone()), &[&format!("{key}: {value}"), "llama"]);
    }
    for (key, value) in [
        ("logit_scale", json!(1)),
        ("residual_multiplier", json!(1.0)),
        ("clip_qkv", Value::Null),
        ("use_qk_norm", json!(false)),
        ("num_local_experts", json!(0)),
        ("is_causal", json!(true)),
    ] {
        spec(&with("llama", key, value));
    }
}

#[test]
fn unknown_keys_are_noted_and_known_neutral_ones_are_not() {
    let folder = with("llama", "frobnicate", json!(3));
    folder.set("sliding_window", json!(4096));
    folder.set("initializer_range", json!(0.5));

    let (_, notes) = folder.open().expect("opens");

    assert_eq!(notes.len(), 2, "{notes:?}");
    assert!(notes[0].contains("'frobnicate: 3'") || notes[1].contains("'frobnicate: 3'"));
    assert!(notes.iter().any(|note| note.contains("'sliding_window: 4096'")));
}

#[test]
fn activations_not_understood_are_refused_by_name() {
    assert_refused(&with("llama", "hidden_act", json!("gelu")), &["hidden_act 'gelu'"]);
    let tanh = with("llama", "hidden_act", json!("gelu_pytorch_tanh"));
    assert_eq!(spec(&tanh).hidden_act, Activation::GeluTanh);
}

#[test]
fn numbers_may_be_written_the_other_way() {
    let folder = with("llama", "hidden_size", json!(64.0));
    folder.set("rope_theta", json!(500000));
    folder.set("rms_norm_eps", json!(0));

    assert_eq!(spec(&folder).norm.eps, 0.0);
}

#[test]
fn absurd_numbers_are_typed_errors() {
    for key in [
        "hidden_size",
        "vocab_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "intermediate_size",
        "max_position_embeddings",
    ] {
        for value in [
            json!(0),
            json!(-1),
            json!(1u64 << 40),
            json!(u32::MAX),
            json!(1e300),
            json!(64.5),
            json!("64"),
            json!(true),
            json!([64]),
            json!({}),
        ] {
            let folder = with("llama", key, value.clone());
            if key == "max_position_embeddings" && value == json!(u32::MAX) {
                assert_refused(&folder, &["max_position_embeddings"]);
                continue;
            }
            let refusal = folder.refusal();
            assert!(refusal.contains("config.json"), "{key} = {value}: {refusal}");
        }
    }
    assert_refused(
        &with("llama", "num_key_value_heads", json!(3)),
        &["4 attention heads", "3 key"],
    );
    for key in ["hidden_size", "vocab_size", "num_hidden_layers", "num_attention_heads"] {
        assert_refused(&without("llama", key), &[&format!("{key} is missing")]);
    }
    for (key, value) in
        [("rms_norm_eps", json!(-1.0)), ("rms_norm_eps", json!(7)), ("rope_theta", json!(0))]
    {
        assert_refused(&with("llama", key, value), &[]);
    }
}

#[test]
fn r49_json_with_a_byte_order_mark_and_crlf_is_read_and_stored_as_it_is() {
    use thintensor::format::Pages;

    for name in ["config.json", "generation_config.json", "tokenizer_config.json"] {
        let folder = Folder::copy_of("llama");
        let text = String::from_utf8(folder.bytes(name)).expect("text");
        let windows = format!("\u{feff}{}", text.replace('\n', "\r\n"));
        folder.write(name, &windows);

        let (packed, _) = folder.open().expect(name);

        let stored = thintensor::format::asset(&packed, name).expect("read");
        assert!(stored.as_deref() == Some(windows.as_bytes()), "{name}");
        assert_eq!(packed.manifest().spec["eos_token_ids"], json!([2]));
    }
}

#[test]
fn r49_json_that_does_not_parse_is_an_error_and_never_a_default() {
    for name in ["config.json", "generation_config.json"] {
        for text in
            ["", "{", "[]", "null", "{\"rms_norm_eps\": NaN}", "\u{feff}\u{feff}{}", "{} {}"]
        {
            let folder = Folder::copy_of("llama");
            folder.write(name, text);

            let refusal = folder.refusal();

            assert!(refusal.contains(name) && refusal.contains("JSON"), "{text}: {refusal}");
        }
        let deep = Folder::copy_of("llama");
        deep.write(name, "[".repeat(100_000));
        assert!(deep.refusal().contains(name));
    }
}
