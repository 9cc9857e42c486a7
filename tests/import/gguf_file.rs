//! Writes GGUF files, right ones and others.

/// A value of the metadata, by its number in the file.
#[derive(Clone)]
pub(crate) enum Value {
    U32(u32),
    I32(i32),
    F32(f32),
    Bool(bool),
    Text(String),
    Texts(Vec<String>),
    Floats(Vec<f32>),
    Ints(Vec<i32>),
    /// A type and the bytes behind it, whatever they are.
    Raw(u32, Vec<u8>),
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Value::Text(text.to_owned())
    }
}

/// A tensor: name, dimensions with the innermost first, type, bytes.
#[derive(Clone)]
pub(crate) struct Tensor {
    pub(crate) name: String,
    pub(crate) dims: Vec<u64>,
    pub(crate) code: u32,
    pub(crate) bytes: Vec<u8>,
    /// Where it says it starts, if not where it does.
    pub(crate) offset: Option<u64>,
}

/// A file to be.
#[derive(Clone, Default)]
pub(crate) struct File {
    pub(crate) metadata: Vec<(String, Value)>,
    pub(crate) tensors: Vec<Tensor>,
    pub(crate) alignment: usize,
}

pub(crate) fn text(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat()
}

impl Value {
    fn encode(&self) -> Vec<u8> {
        let list = |code: u32, len: usize, bytes: Vec<u8>| {
            let head = [&9u32.to_le_bytes()[..], &code.to_le_bytes()].concat();
            [head, (len as u64).to_le_bytes().to_vec(), bytes].concat()
        };
        let one = |code: u32, bytes: &[u8]| [&code.to_le_bytes()[..], bytes].concat();
        match self {
            Value::U32(value) => one(4, &value.to_le_bytes()),
            Value::I32(value) => one(5, &value.to_le_bytes()),
            Value::F32(value) => one(6, &value.to_le_bytes()),
            Value::Bool(value) => one(7, &[u8::from(*value)]),
            Value::Text(value) => one(8, &text(value)),
            Value::Texts(list_of) => {
                list(8, list_of.len(), list_of.iter().flat_map(|value| text(value)).collect())
            }
            Value::Floats(list_of) => {
                list(6, list_of.len(), list_of.iter().flat_map(|v| v.to_le_bytes()).collect())
            }
            Value::Ints(list_of) => {
                list(5, list_of.len(), list_of.iter().flat_map(|v| v.to_le_bytes()).collect())
            }
            Value::Raw(code, bytes) => one(*code, bytes),
        }
    }
}

impl File {
    pub(crate) fn set(&mut self, key: &str, value: impl Into<Value>) {
        let value = value.into();
        match self.metadata.iter_mut().find(|(name, _)| name == key) {
            Some((_, old)) => *old = value,
            None => self.metadata.push((key.to_owned(), value)),
        }
    }

    pub(crate) fn remove(&mut self, key: &str) {
        self.metadata.retain(|(name, _)| name != key);
    }

    pub(crate) fn tensor(&mut self, name: &str) -> &mut Tensor {
        self.tensors.iter_mut().find(|tensor| tensor.name == name).expect("a tensor")
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let alignment = self.alignment.max(1);
        let mut file = b"GGUF".to_vec();
        file.extend(3u32.to_le_bytes());
        file.extend((self.tensors.len() as u64).to_le_bytes());
        file.extend((self.metadata.len() as u64).to_le_bytes());
        for (key, value) in &self.metadata {
            file.extend(text(key));
            file.extend(value.encode());
        }
        let mut offset = 0u64;
        for tensor in &self.tensors {
            file.extend(text(&tensor.name));
            file.extend((tensor.dims.len() as u32).to_le_bytes());
            tensor.dims.iter().for_each(|dim| file.extend(dim.to_le_bytes()));
            file.extend(tensor.code.to_le_bytes());
            file.extend(tensor.offset.unwrap_or(offset).to_le_bytes());
            offset += tensor.bytes.len().next_multiple_of(alignment) as u64;
        }
        file.resize(file.len().next_multiple_of(alignment), 0);
        for tensor in &self.tensors {
            file.extend(&tensor.bytes);
            file.resize(file.len().next_multiple_of(alignment), 0);
        }
        file
    }
}

/// Bytes that repeat late, with finite scales wherever a type has them.
fn noise(count: usize, seed: u32) -> Vec<u8> {
    let mut state = seed.wrapping_mul(2_654_435_761) | 1;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    };
    // The high byte of a half or of an f32 with this bit clear is no infinity and no NaN.
    (0..count).map(|_| next() & 0x3f).collect()
}

/// A llama of one layer whose matrices are of the given types: embedding, q, k, v, out, gate, up, down.
///
/// Hidden 256, two query heads and one key head of 128, feed-forward width 256, four tokens.
pub(crate) fn llama(types: [&str; 8]) -> File {
    let kind = |name: &str| {
        use thintensor::quant::gguf::TensorType;
        let found = TensorType::from_name(name).expect("a type");
        let code = (0..64).find(|&code| TensorType::from_code(code) == Some(found));
        (code.expect("a number"), found)
    };
    let mut file = File { alignment: 32, ..File::default() };
    file.set("general.architecture", "llama");
    for (key, value) in [
        ("block_count", 1),
        ("context_length", 64),
        ("embedding_length", 256),
        ("feed_forward_length", 256),
        ("attention.head_count", 2),
        ("attention.head_count_kv", 1),
    ] {
        file.set(&format!("llama.{key}"), Value::U32(value));
    }
    file.set("llama.attention.layer_norm_rms_epsilon", Value::F32(1e-5));
    let [embed, q, k, v, out, gate, up, down] = types;
    let tensors = [
        ("token_embd", embed, 4),
        ("blk.0.attn_q", q, 256),
        ("blk.0.attn_k", k, 128),
        ("blk.0.attn_v", v, 128),
        ("blk.0.attn_output", out, 256),
        ("blk.0.ffn_gate", gate, 256),
        ("blk.0.ffn_up", up, 256),
        ("blk.0.ffn_down", down, 256),
    ];
    for (seed, (name, type_name, rows)) in (1u32..).zip(tensors) {
        let (code, found) = kind(type_name);
        let bytes = found.bytes(256 * rows).expect("whole blocks") as usize;
        file.tensors.push(Tensor {
            name: format!("{name}.weight"),
            dims: vec![256, rows],
            code,
            bytes: noise(bytes, seed),
            offset: None,
        });
    }
    for (seed, name) in (20u32..).zip(["blk.0.attn_norm", "blk.0.ffn_norm", "output_norm"]) {
        let bytes = noise(1024, seed);
        let name = format!("{name}.weight");
        file.tensors.push(Tensor { name, dims: vec![256], code: 0, bytes, offset: None });
    }
    file
}
