//! What a page means to the model. One table numbers the roles; a number is never reused.
//!
//! A role is what precision, placement and streaming are decided by. `Role` names a page (one part of one
//! matrix group, the vectors of a layer, or a file); `Vector` names one vector inside a `small` page.
//! Start at [`Role::ALL`]. How a role's tensors are called in a source is the business of `model::arch`.

use super::Error;

macro_rules! numbered {
    // One table gives the number, the command-line name and the meaning, so the three cannot drift apart.
    ($(#[$meta:meta])* $name:ident { $($(#[$doc:meta])* $variant:ident = $code:literal, $text:literal;)* }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u32)]
        pub enum $name { $($(#[$doc])* $variant = $code,)* }

        impl $name {
            /// Every value, in the order of the numbers.
            pub const ALL: &[$name] = &[$($name::$variant,)*];

            /// The name used on the command line and in manifests.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self { $($name::$variant => $text,)* }
            }

            /// The number stored in a file.
            #[must_use]
            pub fn code(self) -> u32 {
                self as u32
            }

            /// The value with this number, if this version knows it.
            #[must_use]
            pub fn from_code(code: u32) -> Option<Self> {
                match code { $($code => Some($name::$variant),)* _ => None }
            }

            /// The value with this name, if this version knows it.
            #[must_use]
            pub fn from_name(name: &str) -> Option<Self> {
                match name { $($text => Some($name::$variant),)* _ => None }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.name())
            }
        }

        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.name())
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let name = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
                $name::from_name(&name).ok_or_else(|| {
                    serde::de::Error::custom(format!("unknown {} '{name}'", stringify!($name)))
                })
            }
        }
    };
}

numbered! {
    /// The meaning of a page.
    Role {
        /// A file the archive carries along: tokenizer.json, config.json, licences.
        Asset = 0, "asset";
        /// All vectors of one layer, or of the whole model: norms, biases, sinks. Always resident.
        Small = 1, "small";
        /// Token embedding, `[vocab, hidden]`; read by gather.
        Embed = 2, "embed";
        /// Output projection, `[vocab, hidden]`. Absent when tied: then `head` means `embed`.
        Head = 3, "head";
        /// Query, key and value projections, `[q + k + v rows, hidden]`.
        AttnQkv = 4, "attn_qkv";
        /// Attention output projection, `[hidden, heads * head_dim]`.
        AttnOut = 5, "attn_out";
        /// Dense feed-forward gate and up projections, rows alternating, `[2 * ffn, hidden]`.
        FfnGateUp = 6, "ffn_gate_up";
        /// Dense feed-forward down projection, `[hidden, ffn]`.
        FfnDown = 7, "ffn_down";
        /// Expert choice, `[experts, hidden]`.
        Router = 8, "router";
        /// One expert's gate and up projections, rows alternating.
        ExpertGateUp = 9, "expert_gate_up";
        /// One expert's down projection.
        ExpertDown = 10, "expert_down";
        /// Gate and up projections of the expert every token uses.
        SharedGateUp = 11, "shared_gate_up";
        /// Down projection of the expert every token uses.
        SharedDown = 12, "shared_down";
    }
}

numbered! {
    /// One vector inside a `small` page; stored as F32, whatever the source held.
    Vector {
        /// Norm before attention, `[hidden]`.
        AttnNorm = 0, "attn_norm";
        /// Norm before the feed-forward block, `[hidden]`.
        FfnNorm = 1, "ffn_norm";
        /// Norm before the output projection, `[hidden]`; in the model-wide page.
        FinalNorm = 2, "final_norm";
        /// Per-head norm of the queries, `[head_dim]`.
        QNorm = 3, "q_norm";
        /// Per-head norm of the keys, `[head_dim]`.
        KNorm = 4, "k_norm";
        /// Bias of `attn_qkv`, in its row order.
        AttnQkvBias = 5, "attn_qkv_bias";
        /// Bias of `attn_out`, `[hidden]`.
        AttnOutBias = 6, "attn_out_bias";
        /// Bias of `ffn_gate_up`, in its (alternating) row order.
        FfnGateUpBias = 7, "ffn_gate_up_bias";
        /// Bias of `ffn_down`, `[hidden]`.
        FfnDownBias = 8, "ffn_down_bias";
        /// Norm after attention, before the residual is added, `[hidden]`.
        PostAttnNorm = 9, "post_attn_norm";
        /// Norm after the feed-forward block, before the residual is added, `[hidden]`.
        PostFfnNorm = 10, "post_ffn_norm";
        /// One learned attention logit per head, `[heads]`.
        AttnSinks = 11, "attn_sinks";
    }
}

impl Role {
    /// Whether this page holds rows of a matrix, so that precision and placement apply to it.
    #[must_use]
    pub fn is_matrix(self) -> bool {
        !matches!(self, Role::Asset | Role::Small)
    }
}

/// The role with this number.
///
/// **Errors**: [`Error::UnknownRole`], naming the page.
pub fn role_of(page: u32, code: u32) -> Result<Role, Error> {
    Role::from_code(code).ok_or(Error::UnknownRole { page, code })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roles_and_vectors_round_trip_through_code_and_name() {
        for &role in Role::ALL {
            assert_eq!(Role::from_code(role.code()), Some(role));
            assert_eq!(Role::from_name(role.name()), Some(role));
        }
        for &vector in Vector::ALL {
            assert_eq!(Vector::from_code(vector.code()), Some(vector));
            assert_eq!(Vector::from_name(vector.name()), Some(vector));
        }
        assert_eq!(Role::from_code(9999), None);
    }
}
