//! Drawing through a session: seeds, masks, biases, end tokens, and what a damaged weight is reported as.

use thintensor::Error;
use thintensor::engine::{self, Outputs};
use thintensor::format::Role;
use thintensor::program::{MAX_BIAS, SamplerRecord};
use thintensor::quant::Format;

use crate::tiny::{self, Plant, Tiny, VOCAB, tokens};
use crate::{all_bits, draw, engine, feed, open, session};

fn warm(seed: u32) -> SamplerRecord {
    SamplerRecord { temperature: 1.5, seed_low: seed, ..SamplerRecord::default() }
}

fn ids_with_seed(engine: &engine::Engine, seed: u32) -> Vec<(u32, u32, u32)> {
    let mut session = session(engine);
    session.configure(&warm(seed), &[], None).expect("settings in range");
    let mut records = vec![feed(&mut session, &tokens(5, 1))];
    records.extend(draw(&mut session, 20));
    all_bits(&records)
}

#[test]
fn r36_the_same_seed_draws_the_same_ids_ten_times() {
    let engine = engine(&tiny::llama(), Format::BF16);

    let first = ids_with_seed(&engine, 7);

    assert!((0..9).all(|_| ids_with_seed(&engine, 7) == first));
    assert_ne!(ids_with_seed(&engine, 8), first);
}

#[test]
fn a_masked_sequence_draws_only_allowed_ids() {
    let engine = engine(&tiny::llama(), Format::F32);
    let mut session = session(&engine);
    // 5, 64 and 256, the last of the vocabulary.
    let mask = [1 << 5, 0, 1, 0, 0, 0, 0, 0, 1];
    session.configure(&warm(1), &[], Some(&mask)).expect("a mask that allows something");

    let mut ids = vec![feed(&mut session, &tokens(5, 1)).id];
    ids.extend(draw(&mut session, 60).iter().map(|record| record.id));

    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids, [5, 64, 256]);
}

#[test]
fn a_mask_shorter_than_the_vocabulary_forbids_the_rest() {
    let engine = engine(&tiny::llama(), Format::F32);
    let mut session = session(&engine);
    let all = [u32::MAX; 9];
    session.configure(&warm(1), &[], Some(&all)).expect("everything is allowed");

    // What the mask before allowed beyond the first 32 ids must not count any more.
    session.configure(&warm(1), &[], Some(&[u32::MAX])).expect("32 ids are allowed");

    let mut ids = vec![feed(&mut session, &tokens(5, 1)).id];
    ids.extend(draw(&mut session, 40).iter().map(|record| record.id));
    assert!(ids.iter().all(|&id| id < 32), "{ids:?}");
}

#[test]
fn a_mask_without_any_id_of_the_vocabulary_is_refused() {
    let engine = engine(&tiny::llama(), Format::F32);
    let mut session = session(&engine);
    // 257 is one beyond the last id, in the last word of the mask; the tenth word is beyond all.
    let masks: [&[u32]; 4] =
        [&[], &[0; 9], &[0, 0, 0, 0, 0, 0, 0, 0, 2], &[0, 0, 0, 0, 0, 0, 0, 0, 0, 1]];

    for mask in masks {
        let refused = session.configure(&warm(1), &[], Some(mask));

        assert!(matches!(refused, Err(Error::Engine(engine::Error::EmptyMask))), "{mask:?}");
    }
}

#[test]
fn biases_raise_and_lower_single_ids() {
    let engine = engine(&tiny::llama(), Format::F32);
    let prompt = tokens(5, 1);
    let greedy = |bias: &[(u32, f32)]| {
        let mut session = session(&engine);
        session.configure(&SamplerRecord::default(), bias, None).expect("few biases");
        feed(&mut session, &prompt).id
    };
    let free = greedy(&[]);
    let wanted = (free + 100) % VOCAB;

    assert_eq!(greedy(&[(wanted, 100.0)]), wanted);
    assert_ne!(greedy(&[(free, -100.0)]), free);
    assert_eq!(greedy(&[(VOCAB, 100.0), (u32::MAX, 100.0)]), free);
}

#[test]
fn more_biases_than_a_sampler_holds_are_refused_with_both_numbers() {
    let engine = engine(&tiny::llama(), Format::F32);
    let mut session = session(&engine);
    let bias = vec![(0, 1.0); MAX_BIAS as usize + 1];

    let refused = session.configure(&warm(1), &bias, None).expect_err("one too many");

    assert_eq!(refused.to_string(), "257 logit biases were given, at most 256 are possible");
    session.configure(&warm(1), &bias[1..], None).expect("as many as there may be");
}

#[test]
fn end_tokens_are_marked_and_can_be_ignored() {
    let prompt = tokens(6, 1);
    let plain = engine(&tiny::llama(), Format::F32);
    let mut without = session(&plain);
    let first = feed(&mut without, &prompt);
    let more = draw(&mut without, 8);
    let end = more[3].id;
    let until = more.iter().position(|record| record.id == end).expect("the fourth at the latest");

    // Once named by the description, once by whoever opens the model.
    let mut spec = tiny::llama();
    spec.eos_token_ids = vec![end];
    let described = open(Tiny::new(&spec, Format::F32, 1), |builder| builder);
    let given = open(Tiny::new(&tiny::llama(), Format::F32, 1), |builder| {
        builder.end_ids(&[VOCAB - 1, end])
    });
    for engine in [described, given] {
        for flags in [0, SamplerRecord::IGNORE_END] {
            let mut session = session(&engine);
            let settings = SamplerRecord { flags, ..SamplerRecord::default() };
            session.configure(&settings, &[], None).expect("settings in range");
            assert_eq!(feed(&mut session, &prompt).id, first.id);
            let records = draw(&mut session, 8);

            // The session goes on when asked to; whether to stop is its caller's decision.
            assert_eq!(all_bits(&records), all_bits(&more));
            assert_eq!(records.iter().position(|record| record.is_end()), Some(until));
        }
    }
}

/// The error of feeding two tokens to a model with a NaN in one weight.
fn damaged(role: Role, layer: Option<u32>, row: u64) -> Option<u32> {
    let mut model = Tiny::new(&tiny::biases_and_qk_norm(), Format::F32, 1);
    model.plant = Some(Plant { role, layer, row });
    let engine = open(model, |builder| builder);
    match session(&engine).feed(&[17, 3], &|| false) {
        Err(Error::Engine(engine::Error::NotFinite { layer, position: 1 })) => layer,
        other => panic!("a NaN in {role} of layer {layer:?} gave {other:?}"),
    }
}

#[test]
fn a_nan_in_a_weight_is_reported_with_its_layer() {
    for role in [Role::AttnQkv, Role::AttnOut, Role::FfnGateUp, Role::FfnDown] {
        for layer in 0..tiny::LAYERS {
            assert_eq!(damaged(role, Some(layer), 7), Some(layer), "{role}");
        }
    }
}

#[test]
fn a_nan_in_the_embedding_shows_in_the_first_layer_and_one_in_the_head_in_none() {
    assert_eq!(damaged(Role::Embed, None, 17), Some(0));
    assert_eq!(damaged(Role::Head, None, 200), None);
}

#[test]
fn a_nan_is_reported_by_logits_as_well() {
    let mut model = Tiny::new(&tiny::llama(), Format::BF16, 1);
    model.plant = Some(Plant { role: Role::FfnDown, layer: Some(1), row: 0 });
    let engine = open(model, |builder| builder.outputs(Outputs::Logits { hidden: true }));

    let found = session(&engine).logits(&[1, 2, 3], &mut |_| Ok(()));

    assert!(matches!(found, Err(Error::Engine(engine::Error::NotFinite { layer: Some(1), .. }))));
}

#[test]
fn a_sequence_is_usable_again_after_a_number_that_was_not_finite() {
    let mut model = Tiny::new(&tiny::llama(), Format::F32, 1);
    model.plant = Some(Plant { role: Role::Embed, layer: None, row: 17 });
    let engine = open(model, |builder| builder);
    let mut healthy = session(&engine);
    let expected = feed(&mut healthy, &[3, 4, 5]);
    drop(healthy);

    let mut session = session(&engine);
    feed(&mut session, &[3]);
    assert!(session.feed(&[17, 5], &|| false).is_err());
    assert!(session.next().is_err(), "what was drawn before the failure is not fed");
    session.truncate(1).expect("nothing is in flight");
    let found = feed(&mut session, &[4, 5]);

    assert_eq!((found.id, found.logprob.to_bits()), (expected.id, expected.logprob.to_bits()));
}
