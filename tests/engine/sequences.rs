//! A sequence depends on its own tokens and on nothing else: not on sequences beside it, not on what it held
//! before it was cut, not on how its tokens were cut into chunks, not (closely) on the backend.

use thintensor::plan::KvFormat;
use thintensor::program::SamplerRecord;
use thintensor::quant::Format;

use crate::tiny::{self, Tiny, tokens};
use crate::{
    all_bits, bits, draw, engine, feed, first_difference, for_logits, logits, models, open, session,
};

/// Settings under which an id depends on the logits, the seed, the position and all ids before.
fn drawing() -> SamplerRecord {
    SamplerRecord {
        temperature: 1.0,
        repetition_penalty: 1.2,
        frequency_penalty: 0.1,
        seed_low: 11,
        ..SamplerRecord::default()
    }
}

#[test]
fn r36_two_interleaved_sequences_draw_what_each_draws_alone() {
    for (name, model) in models() {
        let engine = open(model, |builder| builder.sequences(2));
        let prompts = [tokens(40, 1), tokens(3, 2)];
        let alone = prompts.each_ref().map(|prompt| {
            let mut session = session(&engine);
            session.configure(&drawing(), &[], None).expect("settings in range");
            let mut records = vec![feed(&mut session, prompt)];
            records.extend(draw(&mut session, 40));
            all_bits(&records)
        });

        let mut both = [session(&engine), session(&engine)];
        let mut together = [Vec::new(), Vec::new()];
        for ((session, records), prompt) in both.iter_mut().zip(&mut together).zip(&prompts) {
            session.configure(&drawing(), &[], None).expect("settings in range");
            records.push(bits(&feed(session, prompt)));
        }
        for _ in 0..40 {
            for (session, records) in both.iter_mut().zip(&mut together) {
                records.push(bits(&session.next().expect("room for more")));
            }
        }

        assert_eq!(together, alone, "{name}");
        assert_ne!(together[0], together[1], "{name}: different prompts go on differently");
    }
}

#[test]
fn interleaved_prefills_have_the_logits_of_each_alone() {
    for (name, model) in models() {
        let engine = open(model, |builder| for_logits(builder).sequences(2));
        let prompts = [tokens(70, 5), tokens(70, 6)];
        let alone = prompts.each_ref().map(|prompt| logits(&engine, &[prompt]));

        let mut both = [session(&engine), session(&engine)];
        let mut together = [Vec::new(), Vec::new()];
        for range in [0..33, 33..34, 34..70] {
            for ((session, all), prompt) in both.iter_mut().zip(&mut together).zip(&prompts) {
                let mut keep = |rows: thintensor::engine::LogitsChunk| {
                    all.extend(rows.logits);
                    Ok(())
                };
                session.logits(&prompt[range.clone()], &mut keep).expect("tokens that fit");
            }
        }

        for (together, alone) in together.iter().zip(&alone) {
            assert_eq!(first_difference(together, alone), None, "{name}");
        }
    }
}

#[test]
fn a_sequence_cut_back_goes_on_as_if_it_had_never_gone_further() {
    for (name, model) in models() {
        let engine = open(model, |builder| builder.sequences(2));
        let first = tokens(80, 1);
        let tail = tokens(9, 2);
        for len in [0, 1, 31, 32, 33, 63, 64, 65, 79] {
            let mut cut = session(&engine);
            cut.configure(&drawing(), &[], None).expect("settings in range");
            feed(&mut cut, &first);
            draw(&mut cut, 20);
            cut.truncate(len).expect("nothing is in flight");
            let mut records = vec![feed(&mut cut, &tail)];
            records.extend(draw(&mut cut, 12));

            let mut fresh = session(&engine);
            fresh.configure(&drawing(), &[], None).expect("settings in range");
            if len > 0 {
                feed(&mut fresh, &first[..len]);
            }
            let mut expected = vec![feed(&mut fresh, &tail)];
            expected.extend(draw(&mut fresh, 12));

            assert_eq!(all_bits(&records), all_bits(&expected), "{name}, cut to {len}");
        }
    }
}

#[test]
fn rewinding_drawn_ids_and_drawing_again_gives_the_same_ids() {
    let engine = engine(&tiny::llama(), Format::BF16);
    let mut session = session(&engine);
    session.configure(&drawing(), &[], None).expect("settings in range");
    feed(&mut session, &tokens(30, 1));
    let once = draw(&mut session, 6);
    let held = session.tokens().to_vec();

    // The last three of the ids held go back in: positions 33, 34 and 35, across the border of a block.
    session.rewind(3).expect("nothing is in flight");
    assert_eq!(session.tokens(), &held[..33]);
    let again = feed(&mut session, &held[33..]);

    assert_eq!(bits(&again), bits(&once[5]));
}

#[test]
fn next_after_a_cut_has_nothing_to_go_on_from() {
    let engine = engine(&tiny::llama(), Format::F32);
    let mut session = session(&engine);
    feed(&mut session, &tokens(3, 1));

    session.rewind(1).expect("nothing is in flight");

    assert!(matches!(
        session.next(),
        Err(thintensor::Error::Engine(thintensor::engine::Error::NoTokens))
    ));
}

/// Cuts of a prefill: in one go is compared with all of these.
fn cuts(tokens: &[u32]) -> Vec<Vec<&[u32]>> {
    let mut cuts = vec![
        vec![&tokens[..1], &tokens[1..]],
        vec![&tokens[..tokens.len() - 1], &tokens[tokens.len() - 1..]],
        tokens.chunks(7).collect(),
    ];
    if tokens.len() <= 33 {
        cuts.push(tokens.chunks(1).collect());
    }
    cuts
}

#[test]
fn r27_a_prefill_has_the_same_logits_however_it_is_cut() {
    for (name, model) in models() {
        let engine = open(model, for_logits);
        // The window is 8; buckets end at 1, 32, 128 and 512 rows, blocks at every 32 positions.
        for len in [7, 8, 9, 17, 31, 32, 33, 129, 513] {
            let prompt = tokens(len, len as u64);
            let whole = logits(&engine, &[&prompt]);
            for cut in cuts(&prompt) {
                let found = logits(&engine, &cut);

                // A row's sums have one order on the CPU, whatever stands beside it.
                let difference = first_difference(&found, &whole);
                assert_eq!(difference, None, "{name}, {len} tokens in {} chunks", cut.len());
            }
        }
    }
}

#[test]
fn a_prefill_draws_the_same_ids_however_it_is_cut() {
    for (name, model) in models() {
        let engine = open(model, |builder| builder);
        for len in [8, 31, 32, 33, 129, 513] {
            let prompt = tokens(len, 3);
            let ids = |chunks: &[&[u32]]| {
                let mut session = session(&engine);
                let fed: Vec<_> = chunks.iter().map(|chunk| feed(&mut session, chunk)).collect();
                let mut records = vec![fed[fed.len() - 1]];
                records.extend(draw(&mut session, 8));
                all_bits(&records)
            };
            let whole = ids(&[&prompt]);
            for cut in cuts(&prompt) {
                assert_eq!(ids(&cut), whole, "{name}, {len} tokens in {} chunks", cut.len());
            }
        }
    }
}

/// R28: layers with and without a window, and the first layer being the one without.
#[test]
fn r28_mixed_windows_agree_with_the_reference_beyond_the_window() {
    for shift in 0..3 {
        let spec = tiny::with_layers("mixed", |index, layer| {
            layer.sliding_window = Some(8).filter(|_| (index + shift) % 3 != 2);
        });
        let of = |device: &str| {
            let model = Tiny::new(&spec, Format::F32, 8);
            let engine =
                open(model, |builder| for_logits(builder).device(device).kv_format(KvFormat::F32));
            logits(&engine, &[&tokens(40, 4)])
        };

        assert_close(&of("cpu"), &of("cpu:reference"), 1e-4, "mixed windows");
    }
}

#[test]
fn cpu_agrees_with_the_plain_twins() {
    // With an f32 cache the two differ by what f32 sums do, 8e-6 at most here. A key or a value half-way
    // between two numbers of a 16-bit cache may be rounded either way; one of those that is shifts logits
    // by up to 1.5e-3 (f16) or 2.5e-3 (bf16) here.
    for (kv, limit) in [(KvFormat::F32, 1e-4), (KvFormat::F16, 3e-3), (KvFormat::BF16, 2e-2)] {
        let run = |device: &str| {
            models().map(|(name, model)| {
                let engine =
                    open(model, |builder| for_logits(builder).device(device).kv_format(kv));
                let prompt = tokens(66, 1);
                let mut session = session(&engine);
                let mut ids = vec![feed(&mut session, &prompt).id];
                ids.extend(draw(&mut session, 16).iter().map(|record| record.id));
                drop(session);
                (name, logits(&engine, &[&prompt]), ids)
            })
        };
        for ((name, found, ids), (_, expected, expected_ids)) in
            run("cpu").into_iter().zip(run("cpu:reference"))
        {
            assert_close(&found, &expected, limit, name);
            if kv == KvFormat::F32 {
                assert_eq!(ids, expected_ids, "{name}");
            }
        }
    }
}

/// Logits are of size 1 here.
fn assert_close(found: &[f32], expected: &[f32], limit: f32, what: &str) {
    let worst = found.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0f32, f32::max);

    assert!(found.len() == expected.len() && worst < limit, "{what}: off by {worst}");
    assert!(found.iter().any(|logit| logit.abs() > 0.5), "{what}: logits are not all small");
}
