//! Models made here, with sizes the reference checkpoints do not have: rows that need padding, groups of
//! several parts.

use serde_json::json;
use thintensor::format::{Pages, Role};
use thintensor::import::{Purpose, open_source};

use crate::folder::{Tensors, read_pages, safetensors, unpack};

struct Model {
    model_type: &'static str,
    class: &'static str,
    dtype: &'static str,
    vocab: u64,
    hidden: u64,
    heads: u64,
    kv_heads: u64,
    head_dim: u64,
    ffn: u64,
}

impl Model {
    /// One layer, tied, every number another.
    fn tensors(&self) -> Tensors {
        let size = if self.dtype == "F32" { 4 } else { 2 };
        let mut tensors = Tensors::new();
        let mut state = 1u32;
        let mut add = |name: &str, shape: &[u64]| {
            let bytes = shape.iter().product::<u64>() * size;
            let mut next = || {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (state >> 24) as u8
            };
            let content = (0..bytes).map(|_| next()).collect();
            tensors.insert(name.to_owned(), (self.dtype.to_owned(), shape.to_vec(), content));
        };
        let (q, kv) = (self.heads * self.head_dim, self.kv_heads * self.head_dim);
        add("model.embed_tokens.weight", &[self.vocab, self.hidden]);
        add("model.norm.weight", &[self.hidden]);
        add("model.layers.0.input_layernorm.weight", &[self.hidden]);
        add("model.layers.0.post_attention_layernorm.weight", &[self.hidden]);
        add("model.layers.0.self_attn.o_proj.weight", &[self.hidden, q]);
        add("model.layers.0.mlp.down_proj.weight", &[self.hidden, self.ffn]);
        if self.model_type == "phi3" {
            add("model.layers.0.self_attn.qkv_proj.weight", &[q + 2 * kv, self.hidden]);
            add("model.layers.0.mlp.gate_up_proj.weight", &[2 * self.ffn, self.hidden]);
        } else {
            add("model.layers.0.self_attn.q_proj.weight", &[q, self.hidden]);
            add("model.layers.0.self_attn.k_proj.weight", &[kv, self.hidden]);
            add("model.layers.0.self_attn.v_proj.weight", &[kv, self.hidden]);
            add("model.layers.0.mlp.gate_proj.weight", &[self.ffn, self.hidden]);
            add("model.layers.0.mlp.up_proj.weight", &[self.ffn, self.hidden]);
        }
        tensors
    }

    /// Writes the model, packs and unpacks it; the answer is the parts of the gate-up group.
    fn round_trip(&self) -> usize {
        let folder = tempfile::tempdir().expect("a scratch folder");
        let config = json!({
            "model_type": self.model_type, "architectures": [self.class], "hidden_size": self.hidden,
            "vocab_size": self.vocab, "num_attention_heads": self.heads, "head_dim": self.head_dim,
            "num_key_value_heads": self.kv_heads, "intermediate_size": self.ffn,
            "num_hidden_layers": 1, "tie_word_embeddings": true, "rope_theta": 1e4,
        });
        std::fs::write(folder.path().join("config.json"), config.to_string()).expect("written");
        let tensors = self.tensors();
        std::fs::write(folder.path().join("model.safetensors"), safetensors(&tensors))
            .expect("written");

        let (packed, _) = open_source(folder.path(), Purpose::Convert).expect("opens");
        let stored = read_pages(&packed);

        let unpacked = unpack(&packed, &stored);
        for (name, tensor) in &tensors {
            assert!(unpacked[name] == *tensor, "{name}");
        }
        let manifest = packed.finish().expect("a manifest");
        assert!(manifest.provenance.exact_storage_preserved);
        for entry in &manifest.tensors {
            let hash = blake3::hash(&tensors[&entry.name].2);
            assert_eq!(entry.hash, *hash.as_bytes(), "{}", entry.name);
        }
        packed.pages().iter().filter(|page| page.role == Role::FfnGateUp).count()
    }
}

/// Rows of 42 and 18 bytes, a vocabulary and a feed-forward width that no power of two divides.
const ODD: Model = Model {
    model_type: "llama",
    class: "LlamaForCausalLM",
    dtype: "BF16",
    vocab: 257,
    hidden: 21,
    heads: 3,
    kv_heads: 1,
    head_dim: 6,
    ffn: 9,
};

#[test]
fn odd_sizes_are_padded_and_unpack_to_the_source_bytes() {
    for dtype in ["BF16", "F16", "F32"] {
        for (model_type, class) in [("llama", "LlamaForCausalLM"), ("phi3", "Phi3ForCausalLM")] {
            assert_eq!(Model { model_type, class, dtype, ..ODD }.round_trip(), 1);
        }
    }
}

#[test]
fn groups_of_several_parts_unpack_to_the_source_bytes() {
    // Rows of 16 KiB: 2,048 a part. Gate and up have 2 x 2,100 rows, so 1,024 of each in a full part.
    let wide = Model { dtype: "F32", vocab: 2_049, hidden: 4_096, heads: 2, ffn: 2_100, ..ODD };
    for (model_type, class) in [("llama", "LlamaForCausalLM"), ("phi3", "Phi3ForCausalLM")] {
        assert_eq!(Model { model_type, class, ..wide }.round_trip(), 3);
    }
}

#[test]
fn padding_between_and_after_rows_is_zero() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let config = json!({
        "model_type": "llama", "hidden_size": 21, "vocab_size": 257, "num_attention_heads": 3,
        "num_key_value_heads": 1, "head_dim": 6, "intermediate_size": 9, "num_hidden_layers": 1,
        "tie_word_embeddings": true,
    });
    std::fs::write(folder.path().join("config.json"), config.to_string()).expect("written");
    let ones = ODD
        .tensors()
        .into_iter()
        .map(|(name, (dtype, shape, bytes))| (name, (dtype, shape, vec![0xff; bytes.len()])));
    let file = safetensors(&ones.collect());
    std::fs::write(folder.path().join("model.safetensors"), file).expect("written");

    let (packed, _) = open_source(folder.path(), Purpose::Run).expect("opens");
    let stored = read_pages(&packed);

    let embed = packed.pages().iter().position(|page| page.role == Role::Embed).expect("there");
    // 21 numbers of 2 bytes in rows of 48.
    for row in stored[embed].chunks(48) {
        assert!(row[..42].iter().all(|&byte| byte == 0xff));
        assert!(row[42..].iter().all(|&byte| byte == 0));
    }
}
