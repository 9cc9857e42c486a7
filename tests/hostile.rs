//! What hostile input does to `thin`: one trial for each lie a file, a template or a prompt can tell.
//!
//! Every trial makes an input, gives it to the real program and looks at what its user sees: an error that
//! names the thing, a hint, no panic, little memory, little time. `cargo test --test hostile -- --ignored
//! print_table --nocapture` prints all of that as tables, with what the earlier program did. The lies of a
//! version-1 archive are in `format/lies.rs` and those of weight folders also in `import/`; they are listed
//! here, not repeated. Trials run one at a time, since their memory is measured.

use libtest_mimic::{Arguments, Failed, Trial};

#[path = "hostile/case.rs"]
mod case;
#[path = "hostile/earlier.rs"]
mod earlier;
#[path = "hostile/folder.rs"]
mod folder;
#[path = "hostile/template.rs"]
mod template;
#[path = "hostile/text.rs"]
mod text;
#[path = "hostile/v0.rs"]
mod v0;

fn main() {
    let mut arguments = Arguments::from_args();
    arguments.test_threads = Some(1);
    let cases = || [v0::cases(), folder::cases(), text::cases()].concat();
    let mut trials: Vec<Trial> = cases()
        .into_iter()
        .map(|case| Trial::test(case.name, move || case.check().map_err(Failed::from)))
        .collect();
    trials.extend(template::trials());
    let names: Vec<&str> = cases().iter().map(|case| case.name).collect();
    trials.push(Trial::test("every_case_of_the_earlier_program_has_a_test", move || {
        Ok(earlier::check(&names)?)
    }));
    let table = move || {
        case::print_table(&cases())?;
        template::print_table()?;
        earlier::print_table(&cases());
        Ok(())
    };
    trials.push(Trial::test("print_table", table).with_ignored_flag(true));
    libtest_mimic::run(&arguments, trials).exit();
}
