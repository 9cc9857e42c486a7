//! The command line as it is typed, and what the flags that commands share mean.
//!
//! Help texts here are the reference of every command. Values whose meaning needs more than a number are
//! text in these structs; `values` gives the meaning, so that a wrong one gets a hint.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use thintensor::backend::LimitChoice;
use thintensor::plan::KvFormat;

use super::error::Error;
use super::values;

/// Runs causal language models from one self-contained file.
#[derive(Debug, Parser)]
#[command(
    name = "thin",
    version,
    propagate_version = true,
    arg_required_else_help = true,
    after_help = "Results go to stdout, everything else to stderr. Exit codes: 0 it worked, 1 it failed, \
                  2 the command line was wrong or the prompt does not fit, 130 stopped with Ctrl-C.\n\
                  THIN_LOG=debug (or a filter such as thintensor::engine=trace) logs to stderr."
)]
pub(crate) struct Cli {
    /// Log decisions to stderr
    #[arg(long, short, global = true)]
    pub(crate) verbose: bool,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Answer a prompt, complete a text, or chat
    Run(RunArgs),
    /// Write a model as a .thin archive
    Convert(ConvertArgs),
    /// Describe a model: shape, precision, files, origin
    Inspect(InspectArgs),
    /// Count an archive's bytes by role and format
    Stats(StatsArgs),
    /// Check every byte of an archive
    Verify(VerifyArgs),
    /// Write the source files out of an archive, as they were
    Extract(ExtractArgs),
    /// Write the logits of every position to a file
    Logits(LogitsArgs),
    /// Print a completion script for a shell
    Completions(CompletionsArgs),
}

impl Command {
    /// Whether a program reads stdout.
    pub(crate) fn json(&self) -> bool {
        match self {
            Command::Run(args) => args.json,
            Command::Convert(args) => args.json,
            Command::Inspect(args) => args.json,
            Command::Stats(args) => args.json,
            Command::Verify(args) => args.json,
            Command::Extract(args) => args.json,
            Command::Logits(args) => args.json,
            Command::Completions(_) => false,
        }
    }
}

/// Flags of every command that runs a model.
#[derive(Debug, Args)]
#[command(next_help_heading = "Model")]
pub(crate) struct EngineArgs {
    /// Where to run: auto (the best GPU, else the CPU), cpu, cpu:reference (the plain, slow kernels that others
    /// are compared with), wgpu, wgpu:N, or part of an adapter's name
    #[arg(long, default_value = "auto", value_name = "DEVICE")]
    pub(crate) device: String,
    /// Precision profile; this version has safe: weights in the precision of the source
    #[arg(long, default_value = "safe", value_name = "PROFILE")]
    pub(crate) profile: String,
    /// Precision of single roles (comes in a later version)
    #[arg(long, value_name = "ROLE=FORMAT[@LAYERS]")]
    pub(crate) set: Vec<String>,
    /// Number format of cached keys and values: f32, f16 or bf16
    #[arg(long, default_value = "bf16", value_name = "FORMAT")]
    pub(crate) kv: String,
    /// The most device memory to use, such as 6.6GiB or 512MB
    #[arg(long, value_name = "SIZE")]
    pub(crate) budget: Option<String>,
    /// The most host memory to use beside it; this version places nothing there
    #[arg(long, value_name = "SIZE")]
    pub(crate) host_budget: Option<String>,
    /// A folder with tokenizer.json, for a model without one
    #[arg(long, value_name = "DIR")]
    pub(crate) tokenizer: Option<PathBuf>,
    /// Limits to ask the adapter for: adapter, webgpu (what every browser has), or a binding size
    #[arg(long, default_value = "adapter", value_name = "adapter|webgpu|SIZE")]
    pub(crate) limits: String,
    /// Optional features of the adapter to use: all or none
    #[arg(long, default_value = "all", value_name = "all|none")]
    pub(crate) features: String,
    /// Keep the run-time checks of shaders (slow)
    #[arg(long)]
    pub(crate) checked: bool,
}

/// What [`EngineArgs`] mean.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) device: String,
    pub(crate) kv: KvFormat,
    pub(crate) budget: Option<u64>,
    pub(crate) host_budget: Option<u64>,
    pub(crate) tokenizer: Option<PathBuf>,
    pub(crate) limits: LimitChoice,
    pub(crate) features: bool,
    pub(crate) checked: bool,
}

impl EngineArgs {
    /// **Errors**: a value that no version, or not this one, understands.
    pub(crate) fn meaning(&self) -> Result<Settings, Error> {
        values::profile(&self.profile)?;
        not_yet("--set", self.set.first())?;
        let size = |flag, text: &Option<String>| {
            text.as_deref().map(|text| values::size(flag, text)).transpose()
        };
        Ok(Settings {
            device: self.device.clone(),
            kv: values::kv_format(&self.kv)?,
            budget: size("budget", &self.budget)?,
            host_budget: size("host-budget", &self.host_budget)?,
            tokenizer: self.tokenizer.clone(),
            limits: match self.limits.as_str() {
                "adapter" => LimitChoice::Adapter,
                "webgpu" => LimitChoice::WebGpu,
                bytes => LimitChoice::Binding(values::size("limits", bytes)?),
            },
            features: match self.features.as_str() {
                "all" => true,
                "none" => false,
                other => {
                    let message = format!("--features {other}: there is no such choice");
                    return Err(Error::usage(message, "write --features all or --features none"));
                }
            },
            checked: self.checked,
        })
    }
}

/// Refuses a documented flag that this version cannot follow.
pub(crate) fn not_yet(flag: &str, value: Option<&String>) -> Result<(), Error> {
    match value {
        None => Ok(()),
        Some(value) => Err(Error::usage(
            format!("{flag} {value}: {flag} comes in a later version"),
            "this version keeps weights in the precision of the source",
        )),
    }
}

/// Token ids in place of text.
#[derive(Debug, Args)]
pub(crate) struct TokenArgs {
    /// Token ids in place of text, such as 1,2,3
    #[arg(long, value_name = "IDS", allow_hyphen_values = true, conflicts_with = "tokens_file")]
    pub(crate) tokens: Option<String>,
    /// A file of token ids: a JSON list, {"input_ids": [...]}, or numbers
    #[arg(long, value_name = "FILE")]
    pub(crate) tokens_file: Option<PathBuf>,
}

impl TokenArgs {
    /// Whether ids were given.
    pub(crate) fn given(&self) -> bool {
        self.tokens.is_some() || self.tokens_file.is_some()
    }

    /// The ids, where some were given.
    ///
    /// **Errors**: they cannot be read.
    pub(crate) fn ids(&self) -> Result<Option<Vec<u32>>, Error> {
        match (&self.tokens, &self.tokens_file) {
            (Some(text), _) => values::tokens("--tokens", text).map(Some),
            (None, Some(path)) => values::tokens_file(path).map(Some),
            (None, None) => Ok(None),
        }
    }
}

#[derive(Debug, Args)]
#[command(after_help = "\
MODEL is a .thin archive, a folder from the Hugging Face hub, or 'demo' (built in, and the default). A \
single argument is the MODEL if it exists, ends in .thin, .gguf or .safetensors, or looks like ORG/NAME; \
it is a PROMPT for 'demo' if it holds white space.

PROMPT comes from the argument, from --file, or from stdin where that is not a terminal. With a chat \
template it is a user turn; without one, or with --raw, it is completed. On a terminal, and without a \
PROMPT, you chat. Ctrl-C stops a reply; a second one within a second, or one at the prompt, ends the chat.

Without --max-tokens a reply ends when the model ends it or the context is full. What the model's \
generation_config.json says about sampling is the default (do_sample: false takes the most likely token); \
without one it is --temp 0.8 --top-p 0.95.")]
pub(crate) struct RunArgs {
    /// The model, or a prompt for 'demo'
    pub(crate) model: Option<OsString>,
    /// The prompt
    pub(crate) prompt: Option<OsString>,
    /// Read the prompt from a file ('-' is stdin); one line end at its end is dropped
    #[arg(long, short, value_name = "FILE", conflicts_with = "prompt")]
    pub(crate) file: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) ids: TokenArgs,
    /// Complete the prompt as it stands, without the chat template
    #[arg(long)]
    pub(crate) raw: bool,
    /// System message of a chat
    #[arg(long, value_name = "TEXT")]
    pub(crate) system: Option<String>,
    /// Variable of the chat template, such as enable_thinking=false; repeatable
    #[arg(long, value_name = "KEY=JSON")]
    pub(crate) chat_arg: Vec<String>,
    /// Do not show what the model thinks before it answers
    #[arg(long)]
    pub(crate) hide_thinking: bool,
    /// Show speeds and memory after each reply, on stderr
    #[arg(long)]
    pub(crate) stats: bool,
    /// Print one JSON object in place of the text
    #[arg(long)]
    pub(crate) json: bool,
    /// Tokens the context may hold, prompt and replies; by default what the model was trained for, at most
    /// 8192
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) context: Option<u32>,
    #[command(flatten)]
    pub(crate) engine: EngineArgs,
    #[command(flatten)]
    pub(crate) sampling: SamplingArgs,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Sampling")]
pub(crate) struct SamplingArgs {
    /// Tokens in a reply at most; by default until the model ends it or the context is full
    #[arg(long, short = 'n', value_name = "N")]
    pub(crate) max_tokens: Option<u32>,
    /// Temperature; 0 takes the most likely token every time
    #[arg(long, value_name = "T", allow_negative_numbers = true)]
    pub(crate) temp: Option<f32>,
    /// Keep the K most likely tokens; 0 keeps all
    #[arg(long, value_name = "K")]
    pub(crate) top_k: Option<u32>,
    /// Keep the most likely tokens that together have this probability
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    pub(crate) top_p: Option<f32>,
    /// Keep tokens with this share of the most likely one's probability
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    pub(crate) min_p: Option<f32>,
    /// Factor against repetition of recent tokens; 1 is off
    #[arg(long, value_name = "F", allow_negative_numbers = true)]
    pub(crate) repeat_penalty: Option<f32>,
    /// Subtracted once from logits of recent tokens
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    pub(crate) presence_penalty: Option<f32>,
    /// Subtracted from logits of recent tokens for each time they occur
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    pub(crate) frequency_penalty: Option<f32>,
    /// How many tokens are recent, the prompt's included
    #[arg(long, value_name = "N")]
    pub(crate) repeat_last_n: Option<u32>,
    /// Seed of the draws; by default one is drawn and shown
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u64>,
    /// Text that ends a reply, and is not shown; repeatable
    #[arg(long, value_name = "TEXT")]
    pub(crate) stop: Vec<String>,
    /// Go on after tokens that end a reply
    #[arg(long)]
    pub(crate) ignore_eos: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ConvertArgs {
    /// A folder from the Hugging Face hub, a weight file in one, or an archive of version 0
    #[arg(value_name = "SRC")]
    pub(crate) source: OsString,
    /// The archive to write; by default NAME.thin in this folder
    #[arg(long, short, value_name = "OUT.thin")]
    pub(crate) output: Option<PathBuf>,
    /// Replace an archive that exists
    #[arg(long)]
    pub(crate) force: bool,
    /// Go on where an earlier run stopped
    #[arg(long)]
    pub(crate) resume: bool,
    /// A folder with tokenizer.json, for a source without one
    #[arg(long, value_name = "DIR")]
    pub(crate) tokenizer: Option<PathBuf>,
    /// Precision profile; this version has safe: weights in the precision of the source
    #[arg(long, default_value = "safe", value_name = "PROFILE")]
    pub(crate) profile: String,
    /// Precision of single roles (comes in a later version)
    #[arg(long, value_name = "ROLE=FORMAT[@LAYERS]")]
    pub(crate) set: Vec<String>,
    /// Round the blocks of a GGUF file to this format, and name its tensors as a folder would
    #[arg(long, value_name = "FORMAT", value_parser = ["bf16"])]
    pub(crate) dequantize: Option<String>,
    /// Print the report as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct VerifyArgs {
    /// The archive
    pub(crate) archive: OsString,
    /// Print the report as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ExtractArgs {
    /// The archive, or 'demo'
    pub(crate) archive: OsString,
    /// The folder to write to; it is created if need be
    #[arg(long, short, value_name = "DIR")]
    pub(crate) output: PathBuf,
    /// Write into a folder that holds something
    #[arg(long)]
    pub(crate) force: bool,
    /// Print the report as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct InspectArgs {
    /// The model: an archive, a folder, or 'demo'
    pub(crate) model: OsString,
    /// Print the programs of a decode step and of a prefill step
    #[arg(long)]
    pub(crate) program: bool,
    /// The device the programs are for
    #[arg(long, default_value = "auto", value_name = "DEVICE")]
    pub(crate) device: String,
    /// Print the description as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct StatsArgs {
    /// The archive, or 'demo'
    pub(crate) archive: OsString,
    /// Print the report as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Which rows of logits are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Positions {
    /// Those of every position.
    All,
    /// Those of the last position.
    Last,
}

#[derive(Debug, Args)]
#[command(after_help = "\
The file holds input_ids (i64 [n]), logits (f32 [n, vocab], or [1, vocab] with --positions last), and with \
--hidden also hidden.embed, hidden.0, hidden.1, ... (after each layer) and hidden.final_norm. Its metadata \
names device, profile, model, kv and the program's version.")]
pub(crate) struct LogitsArgs {
    /// The model: an archive, a folder, or 'demo'
    pub(crate) model: OsString,
    #[command(flatten)]
    pub(crate) ids: TokenArgs,
    /// Text in place of ids, tokenised as it stands
    #[arg(long, value_name = "TEXT", conflicts_with_all = ["tokens", "tokens_file"])]
    pub(crate) prompt: Option<String>,
    /// The file to write
    #[arg(long, short, value_name = "OUT.safetensors")]
    pub(crate) output: PathBuf,
    /// Which rows of logits to write
    #[arg(long, value_enum, default_value = "all")]
    pub(crate) positions: Positions,
    /// Write the output of every layer, too
    #[arg(long)]
    pub(crate) hidden: bool,
    /// Print a report as JSON
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) engine: EngineArgs,
}

#[derive(Debug, Args)]
pub(crate) struct CompletionsArgs {
    /// The shell
    #[arg(value_enum)]
    pub(crate) shell: clap_complete::Shell,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        <Cli as clap::CommandFactory>::command().debug_assert();
    }
}
