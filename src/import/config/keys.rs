//! Keys of config.json that no architecture here reads: which are harmless, which would change the result.

use serde_json::Value;

use super::Problem;
use super::fields::{Fields, brief};

/// Keys without influence on inference: training, bookkeeping, and sampling defaults of old files.
const NEUTRAL: &[&str] = &[
    "_attn_implementation",
    "_attn_implementation_autoset",
    "_from_model_config",
    "_name_or_path",
    "add_cross_attention",
    "attention_dropout",
    "attn_implementation",
    "attn_pdrop",
    "auto_map",
    "bad_words_ids",
    "begin_suppress_tokens",
    "chunk_size_feed_forward",
    "classifier_dropout",
    "decoder_start_token_id",
    "diversity_penalty",
    "do_sample",
    "dtype",
    "early_stopping",
    "embd_pdrop",
    "encoder_no_repeat_ngram_size",
    "exponential_decay_length_penalty",
    "finetuning_task",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "hidden_dropout",
    "id2label",
    "initializer_range",
    "is_decoder",
    "label2id",
    "length_penalty",
    "max_length",
    "min_length",
    "no_repeat_ngram_size",
    "num_beam_groups",
    "num_beams",
    "num_return_sequences",
    "output_attentions",
    "output_hidden_states",
    "output_router_logits",
    "output_scores",
    "pad_token_id",
    "prefix",
    "pretraining_tp",
    "problem_type",
    "pruned_heads",
    "remove_invalid_values",
    "repetition_penalty",
    "resid_pdrop",
    "return_dict",
    "return_dict_in_generate",
    "sep_token_id",
    "suppress_tokens",
    "task_specific_params",
    "temperature",
    "tf_legacy_loss",
    "tokenizer_class",
    "top_k",
    "top_p",
    "torch_dtype",
    "torchscript",
    "transformers_version",
    "typical_p",
    "unsloth_fixed",
    "unsloth_version",
    "use_bfloat16",
    "use_cache",
];

/// When a key that changes arithmetic changes nothing; null never does.
enum Unless {
    /// It is false or empty.
    Off,
    /// It is false, empty or this number.
    Is(f64),
    /// It is true.
    True,
}

/// Keys that change arithmetic in families this version does not run, found in families it does.
const CHANGING: &[(&str, Unless)] = &[
    ("alibi", Unless::Off),
    ("attention_chunk_size", Unless::Off),
    ("attention_logit_cap", Unless::Off),
    ("attention_multiplier", Unless::Off),
    ("attention_out_bias", Unless::Off),
    ("attn_logit_softcapping", Unless::Off),
    ("attn_temperature_tuning", Unless::Off),
    ("clip_qkv", Unless::Off),
    ("cross_attention_layers", Unless::Off),
    ("dim_model_base", Unless::Off),
    ("embedding_multiplier", Unless::Is(1.0)),
    ("final_logit_softcapping", Unless::Off),
    ("hidden_activation", Unless::Off),
    ("is_causal", Unless::True),
    ("is_encoder_decoder", Unless::Off),
    ("kv_lora_rank", Unless::Off),
    ("lm_head_bias", Unless::Off),
    ("logit_scale", Unless::Is(1.0)),
    ("logits_scaling", Unless::Is(1.0)),
    ("mlp_only_layers", Unless::Off),
    ("moe_intermediate_size", Unless::Off),
    ("n_routed_experts", Unless::Is(0.0)),
    ("n_shared_experts", Unless::Is(0.0)),
    ("no_rope_layers", Unless::Off),
    ("num_experts", Unless::Is(0.0)),
    ("num_kv_shared_layers", Unless::Is(0.0)),
    ("num_local_experts", Unless::Is(0.0)),
    ("parallel_attn", Unless::Off),
    ("parallel_residual", Unless::Off),
    ("qk_layernorm", Unless::Off),
    ("query_pre_attn_scalar", Unless::Off),
    ("residual_multiplier", Unless::Is(1.0)),
    ("rope_interleave", Unless::Off),
    ("rope_interleaved", Unless::Off),
    ("rotary_pct", Unless::Is(1.0)),
    ("scale_depth", Unless::Off),
    ("scale_emb", Unless::Is(1.0)),
    ("sliding_window_pattern", Unless::Off),
    ("use_bidirectional_attention", Unless::Off),
    ("use_mrope", Unless::Off),
    ("use_parallel_residual", Unless::Off),
    ("use_qk_norm", Unless::Off),
];

/// Refuses unread keys that change arithmetic; names in `notes` those that mean nothing here.
pub(super) fn check_unread(
    fields: &Fields<'_>,
    model_type: &str,
    notes: &mut Vec<String>,
) -> Result<(), Problem> {
    for (key, value) in fields.unread() {
        match CHANGING.iter().find(|(changing, _)| *changing == key) {
            Some((_, unless)) if unless.holds(value) => {}
            Some(_) => {
                return Err(Problem::Changes {
                    key: key.to_owned(),
                    value: brief(value),
                    model_type: model_type.to_owned(),
                });
            }
            None if is_off(value) || NEUTRAL.contains(&key) => {}
            None => notes.push(format!(
                "config.json: '{key}: {}' means nothing for {model_type} and is not used",
                brief(value)
            )),
        }
    }
    Ok(())
}

/// Whether a value is the absence of a feature.
fn is_off(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty(),
        Value::Bool(true) | Value::Number(_) | Value::String(_) => false,
    }
}

impl Unless {
    fn holds(&self, value: &Value) -> bool {
        match self {
            Unless::Off => is_off(value),
            Unless::Is(number) => is_off(value) || value.as_f64() == Some(*number),
            Unless::True => matches!(value, Value::Null | Value::Bool(true)),
        }
    }
}
