//! Memory: the plan to the byte, budgets, blocks that come back, and nothing left behind by a failed load.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use proptest::prelude::{Strategy, prop, prop_assert_eq, prop_oneof, proptest};
use proptest::test_runner::{Config, TestCaseError};
use thintensor::backend::cpu::Cpu;
use thintensor::backend::{
    self, Backend, Buffer, DeviceInfo, Fence, Fill, Footprint, MemoryUse, OpTime, ProgramId,
    ReadId, Slice, StagingId, Tier,
};
use thintensor::engine::{self, Engine, Outputs, Session};
use thintensor::format::PageId;
use thintensor::plan::{KV_BLOCK, KvFormat};
use thintensor::program::{BufferName, Op, Program, StepRow};
use thintensor::quant::Format;
use thintensor::{Error, Result};

use crate::tiny::{self, Tiny, tokens};
use crate::{draw, feed, models, open, session};

#[test]
fn peak_memory_is_the_plan_to_the_byte() {
    for outputs in
        [Outputs::Ids, Outputs::Logits { hidden: false }, Outputs::Logits { hidden: true }]
    {
        for (kv, sequences, context) in
            [(KvFormat::F32, 1, 1), (KvFormat::F16, 3, 33), (KvFormat::BF16, 2, 700)]
        {
            for (name, model) in models() {
                let builder = Engine::builder(Arc::new(model))
                    .device("cpu")
                    .outputs(outputs)
                    .kv_format(kv)
                    .sequences(sequences)
                    .context(Some(context));
                let (_, _, planned) = builder.plan().expect("a small model");

                let engine = builder.open().expect("a small model");
                let mut session = session(&engine);
                feed(&mut session, &tokens(context as usize, 1));

                let memory = engine.memory();
                assert_eq!(
                    memory.peak_device_bytes,
                    planned.total(),
                    "{name} {outputs:?} {context}"
                );
                assert_eq!(memory.device_bytes, planned.total());
                assert_eq!(memory.peak_host_bytes, 0);
            }
        }
    }
}

#[test]
fn a_budget_one_byte_too_small_is_refused_with_both_numbers() {
    let open = |budget| {
        let model = Arc::new(Tiny::new(&tiny::llama(), Format::BF16, 1));
        Engine::builder(model).device("cpu").context(Some(512)).budget(Some(budget)).open()
    };
    let model = Arc::new(Tiny::new(&tiny::llama(), Format::BF16, 1));
    let (_, _, planned) = Engine::builder(model).context(Some(512)).plan().expect("a small model");
    let needed = planned.total();

    let refused = open(needed - 1).map(|_| ()).expect_err("one byte is missing");

    assert!(matches!(
        &refused,
        Error::Engine(engine::Error::Budget { purposes, budget, context: 512 })
            if purposes.total() == needed && *budget == needed - 1
    ));
    let text = refused.to_string();
    assert!(
        text.contains(&needed.to_string()) && text.contains(&(needed - 1).to_string()),
        "{text}"
    );
    assert!(refused.hint().is_some());
    assert!(open(needed).is_ok());
}

#[test]
fn a_load_that_fails_at_any_page_leaves_nothing_behind() {
    let pages = Tiny::new(&tiny::llama(), Format::F32, 1).records.len() as u32;
    for page in 0..pages {
        let device: Arc<dyn Backend> = Arc::new(Cpu::new());
        let mut model = Tiny::new(&tiny::llama(), Format::F32, 1);
        model.broken = Some(PageId(page));

        let failed = Engine::builder(Arc::new(model)).backend(Arc::clone(&device)).open();

        assert!(matches!(failed, Err(Error::Format(_))), "page {page}");
        assert_eq!(device.memory().device_bytes, 0, "page {page}");
    }
}

#[test]
fn a_load_that_runs_out_of_memory_at_any_buffer_leaves_nothing_behind() {
    let load = |buffers| {
        let device = Arc::new(Stingy { cpu: Cpu::new(), left: AtomicI64::new(buffers) });
        let model = Tiny::new(&tiny::llama(), Format::F32, 1);
        let builder = Engine::builder(Arc::new(model)).context(Some(64));
        let engine = builder.backend(Arc::clone(&device) as Arc<dyn Backend>).open();
        (device, engine)
    };
    let mut refused = 0;
    loop {
        let (device, engine) = load(refused);
        match engine {
            Err(Error::Backend(backend::Error::OutOfMemory { .. })) => {}
            Err(other) => panic!("another error: {other}"),
            Ok(engine) => {
                drop(engine);
                assert_eq!(device.memory().device_bytes, 0);
                break;
            }
        }
        assert_eq!(device.memory().device_bytes, 0, "refused after {refused} buffers");
        refused += 1;
    }
    // The groups, a pool for each layer, activations and tables.
    assert!(refused > 30, "{refused} buffers");
}

#[test]
fn engines_on_one_device_give_back_only_their_own() {
    let device: Arc<dyn Backend> = Arc::new(Cpu::new());
    let load = |seed| {
        let model = Arc::new(Tiny::new(&tiny::tied(), Format::F16, seed));
        Engine::builder(model).backend(Arc::clone(&device)).open().expect("a small model")
    };
    let first = load(1);
    let alone = device.memory().device_bytes;
    let second = load(2);
    assert_eq!(device.memory().device_bytes, 2 * alone);
    let mut session = session(&second);
    feed(&mut session, &tokens(5, 1));

    drop(first);
    draw(&mut session, 3);

    assert_eq!(device.memory().device_bytes, alone);
    drop((session, second));
    assert_eq!(device.memory().device_bytes, 0);
}

/// A backend that allows so many buffers.
struct Stingy {
    cpu: Cpu,
    left: AtomicI64,
}

impl Stingy {
    fn take(&self, requested: u64, label: &str) -> Result<(), backend::Error> {
        if self.left.fetch_sub(1, Ordering::Relaxed) > 0 {
            return Ok(());
        }
        Err(backend::Error::OutOfMemory { label: label.into(), requested, in_use: 0 })
    }
}

type Refusable<T> = Result<T, backend::Error>;

impl Backend for Stingy {
    fn info(&self) -> &DeviceInfo {
        self.cpu.info()
    }
    fn memory(&self) -> MemoryUse {
        self.cpu.memory()
    }
    fn supports(&self, op: &Op) -> bool {
        self.cpu.supports(op)
    }
    fn footprint(&self, program: &Program) -> Footprint {
        self.cpu.footprint(program)
    }
    fn alloc(&self, bytes: u64, tier: Tier, label: &str) -> Refusable<Buffer> {
        self.take(bytes, label)?;
        self.cpu.alloc(bytes, tier, label)
    }
    fn alloc_filled(
        &self,
        bytes: u64,
        tier: Tier,
        label: &str,
        chunks: &[Range<u64>],
        fill: Fill<'_>,
    ) -> Result<Buffer> {
        self.take(bytes, label)?;
        self.cpu.alloc_filled(bytes, tier, label, chunks, fill)
    }
    fn free(&self, buffer: Buffer) {
        self.cpu.free(buffer);
    }
    fn staging(&self, bytes: u64) -> Refusable<StagingId> {
        self.cpu.staging(bytes)
    }
    fn fill(&self, staging: StagingId, offset: u64, bytes: &[u8]) -> Refusable<()> {
        self.cpu.fill(staging, offset, bytes)
    }
    fn upload(&self, dst: Slice, src: StagingId, after: &[Fence]) -> Refusable<Fence> {
        self.cpu.upload(dst, src, after)
    }
    fn copy(&self, dst: Slice, src: Slice, after: &[Fence]) -> Refusable<Fence> {
        self.cpu.copy(dst, src, after)
    }
    fn write(&self, dst: Slice, bytes: &[u8], after: &[Fence]) -> Refusable<Fence> {
        self.cpu.write(dst, bytes, after)
    }
    fn read(&self, src: Slice, after: Fence) -> Refusable<ReadId> {
        self.cpu.read(src, after)
    }
    fn take(&self, read: ReadId, deadline: Duration) -> Refusable<Option<Vec<u8>>> {
        self.cpu.take(read, deadline)
    }
    fn compile(
        &self,
        program: &Program,
        bind: &BTreeMap<BufferName, Slice>,
    ) -> Refusable<ProgramId> {
        self.cpu.compile(program, bind)
    }
    fn release(&self, program: ProgramId) {
        self.cpu.release(program);
    }
    fn run(
        &self,
        program: ProgramId,
        segment: usize,
        step: Option<&[StepRow]>,
        after: &[Fence],
    ) -> Refusable<Fence> {
        self.cpu.run(program, segment, step, after)
    }
    fn wait(&self, fence: Fence, timeout: Duration) -> Refusable<bool> {
        self.cpu.wait(fence, timeout)
    }
    fn timings(&self) -> Vec<OpTime> {
        self.cpu.timings()
    }
}

/// What may happen to one of a few sequences.
#[derive(Clone, Copy, Debug)]
enum Event {
    Feed(usize),
    Draw(usize),
    Truncate(usize),
    Drop,
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        4 => (1..60usize).prop_map(Event::Feed),
        2 => (1..40usize).prop_map(Event::Draw),
        3 => (0..120usize).prop_map(Event::Truncate),
        1 => prop::strategy::Just(Event::Drop),
    ]
}

const CONTEXT: u32 = 100;
const SEQUENCES: u32 = 3;

/// Runs the events; a sequence that is not there is begun. After each, every block is free or held.
fn conserves(engine: &Engine, events: &[(usize, Event)]) -> Result<(), TestCaseError> {
    let total = CONTEXT.div_ceil(KV_BLOCK) * SEQUENCES;
    let mut open: [Option<Session>; SEQUENCES as usize] = [None, None, None];
    for &(index, event) in events {
        let sequence = open[index].get_or_insert_with(|| session(engine));
        let held = sequence.tokens().len();
        match event {
            Event::Feed(count) => {
                let fits = held + count <= CONTEXT as usize;
                let fed = sequence.feed(&tokens(count, count as u64), &|| false);
                prop_assert_eq!(fed.is_ok(), fits);
                prop_assert_eq!(sequence.tokens().len(), if fits { held + count } else { held });
            }
            Event::Draw(count) => {
                for _ in 0..count {
                    if sequence.next().is_err() {
                        break;
                    }
                }
            }
            Event::Truncate(len) => {
                sequence.truncate(len).expect("nothing is in flight");
                prop_assert_eq!(sequence.tokens().len(), held.min(len));
            }
            Event::Drop => open[index] = None,
        }
        let blocks = |session: &Session| (session.tokens().len() as u32).div_ceil(KV_BLOCK);
        let held: u32 = open.iter().flatten().map(blocks).sum();
        prop_assert_eq!(engine.free_kv_blocks() + held, total, "after {:?} of {}", event, index);
    }
    drop(open);
    prop_assert_eq!(engine.free_kv_blocks(), total);
    Ok(())
}

proptest! {
    #![proptest_config(Config { cases: 64, ..Config::default() })]

    #[test]
    fn kv_blocks_are_free_or_held_by_one_sequence(
        events in prop::collection::vec((0..SEQUENCES as usize, event()), 1..40)
    ) {
        let engine = open(Tiny::new(&tiny::tied(), Format::BF16, 1), |builder| {
            builder.context(Some(CONTEXT)).sequences(SEQUENCES)
        });

        conserves(&engine, &events)?;
    }
}
