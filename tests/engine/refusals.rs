//! What the engine refuses, with which numbers, and that a refusal changes nothing.

use thintensor::Error;
use thintensor::engine;
use thintensor::quant::Format;

use crate::tiny::{self, TRAINED, Tiny, VOCAB, tokens};
use crate::{bits, draw, engine as tiny_engine, feed, open, session};

fn engine_error<T>(result: Result<T, Error>) -> engine::Error {
    match result {
        Err(Error::Engine(error)) => error,
        Err(other) => panic!("another error: {other}"),
        Ok(_) => panic!("it was not refused"),
    }
}

#[test]
fn a_prompt_beyond_the_context_is_refused_and_one_that_fills_it_is_not() {
    let engine = open(Tiny::new(&tiny::llama(), Format::F32, 1), |b| b.context(Some(33)));
    let mut session = session(&engine);

    let refused = engine_error(session.feed(&tokens(34, 1), &|| false));
    assert!(matches!(refused, engine::Error::ContextFull { needed: 34, context: 33 }));
    assert!(session.tokens().is_empty());

    feed(&mut session, &tokens(33, 1));
    let full = engine_error(session.next());
    assert!(matches!(full, engine::Error::ContextFull { needed: 34, context: 33 }));
    // Asking again changes nothing, and going back makes room.
    assert!(matches!(engine_error(session.next()), engine::Error::ContextFull { .. }));
    session.truncate(31).expect("nothing is in flight");
    feed(&mut session, &tokens(1, 2));
    draw(&mut session, 1);
    assert!(matches!(engine_error(session.next()), engine::Error::ContextFull { .. }));
}

#[test]
fn a_token_beyond_the_vocabulary_is_refused_with_both_numbers() {
    let engine = tiny_engine(&tiny::llama(), Format::F32);
    let mut session = session(&engine);

    for token in [VOCAB, u32::MAX, 1 << 31] {
        let refused = engine_error(session.feed(&[1, token], &|| false));

        assert!(matches!(refused, engine::Error::Token { token: t, vocab: VOCAB } if t == token));
    }
    assert!(session.tokens().is_empty());
    feed(&mut session, &[VOCAB - 1]);
}

#[test]
fn no_tokens_are_refused_and_leave_what_was_drawn() {
    let engine = tiny_engine(&tiny::llama(), Format::F32);
    let mut session = session(&engine);
    assert!(matches!(engine_error(session.feed(&[], &|| false)), engine::Error::NoTokens));
    assert!(matches!(engine_error(session.next()), engine::Error::NoTokens));
    let drawn = feed(&mut session, &tokens(4, 1));

    assert!(matches!(engine_error(session.feed(&[], &|| false)), engine::Error::NoTokens));

    draw(&mut session, 1);
    assert_eq!(session.tokens().last(), Some(&drawn.id));
}

#[test]
fn a_context_of_nothing_or_beyond_training_is_refused() {
    let open = |context| {
        let model = std::sync::Arc::new(Tiny::new(&tiny::llama(), Format::F32, 1));
        engine::Engine::builder(model).device("cpu").context(Some(context)).open()
    };

    let asked = TRAINED + 1;
    assert!(matches!(
        engine_error(open(asked)),
        engine::Error::ContextBeyondTraining { asked: a, trained: TRAINED } if a == asked
    ));
    assert!(matches!(engine_error(open(0)), engine::Error::NoTokens));
    assert_eq!(open(TRAINED).expect("as trained").context(), TRAINED);
    assert_eq!(open(1).expect("one token").context(), 1);
}

#[test]
fn a_sequence_beyond_those_there_are_is_refused_until_one_is_dropped() {
    let engine = open(Tiny::new(&tiny::llama(), Format::F32, 1), |builder| builder.sequences(2));
    let (first, second) = (session(&engine), session(&engine));

    let refused = engine_error(engine.session().map(|_| ()));
    assert!(matches!(refused, engine::Error::NoSequence { sequences: 2 }));

    drop(first);
    let third = session(&engine);
    assert!(engine.session().is_err());
    drop((second, third));
}

#[test]
fn a_new_sequence_knows_nothing_of_the_one_that_had_its_place() {
    let engine = tiny_engine(&tiny::llama(), Format::F32);
    let settings = thintensor::program::SamplerRecord {
        temperature: 2.0,
        repetition_penalty: 2.0,
        ..Default::default()
    };
    let expected = bits(&feed(&mut session(&engine), &tokens(5, 1)));

    let mut before = session(&engine);
    before.configure(&settings, &[(3, 50.0)], Some(&[8])).expect("a mask that allows something");
    feed(&mut before, &tokens(40, 2));
    drop(before);

    assert_eq!(bits(&feed(&mut session(&engine), &tokens(5, 1))), expected);
}

#[test]
fn an_interrupted_prefill_keeps_whole_chunks_and_forgets_what_was_drawn() {
    let engine = tiny_engine(&tiny::llama(), Format::F32);
    let mut session = session(&engine);
    feed(&mut session, &[1, 2]);
    let asked = std::cell::Cell::new(0);
    let stop = || {
        asked.set(asked.get() + 1);
        asked.get() > 1
    };

    let prompt = tokens(600, 1);
    let stopped = engine_error(session.feed(&prompt, &stop));

    assert!(matches!(stopped, engine::Error::Interrupted));
    assert_eq!(session.tokens().len(), 2 + 128, "one chunk of a processor");
    assert!(matches!(engine_error(session.next()), engine::Error::NoTokens));
    let resumed = feed(&mut session, &prompt[128..]);
    drop(session);
    let mut whole = crate::session(&engine);
    feed(&mut whole, &[1, 2]);
    assert_eq!(bits(&resumed), bits(&feed(&mut whole, &prompt)));
}
