//! The kernel suite: every op of `shaders/kernels.toml` on every device against its twin, over the cases
//! of `tests/cases`. One process, so that a device is opened once.
//!
//!     cargo test --test kernels                     everything
//!     cargo test --test kernels cpu::attention::    one op
//!
//! A trial is one `[[case]]` on one device. `kernels/setup.rs` makes one-op programs, runs them and checks
//! that nothing else was touched; `kernels/ops.rs` is where a new op joins.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use libtest_mimic::{Arguments, Failed, Trial};
use thintensor::backend::{self, Backend};

use case::{Case, Family};
use common::required_devices;

#[path = "kernels/cached.rs"]
mod cached;
#[path = "kernels/case.rs"]
mod case;
mod common;
#[path = "kernels/compare.rs"]
mod compare;
#[path = "kernels/drawn.rs"]
mod drawn;
#[path = "kernels/facts.rs"]
mod facts;
#[path = "kernels/ops.rs"]
mod ops;
#[path = "kernels/setup.rs"]
mod setup;

/// The devices under test, as `backend::open` knows them. One that this machine lacks is an ignored trial,
/// or a failing one where `THIN_REQUIRE` names it.
const DEVICES: &[&str] = &["cpu", "wgpu"];

/// What they are compared with.
const REFERENCE: &str = "cpu:reference";

type Device = Arc<dyn Backend>;

fn main() -> ExitCode {
    let mut trials = vec![
        Trial::test("comparison_refuses_absurd_tolerances", || Ok(compare::self_test()?)),
        Trial::test("case_files_combine_alternatives", || Ok(case::self_test()?)),
    ];
    let reference = backend::open(REFERENCE).expect("the reference is always there");
    let kernels = kernels();
    trials.extend(facts::trials(REFERENCE, &reference));
    for (name, device) in devices() {
        let device = match device {
            Ok(device) => device,
            Err(Missing { reason, required }) => {
                let missing =
                    Trial::test(format!("{name}::is_available"), move || Err(Failed::from(reason)));
                trials.push(missing.with_ignored_flag(!required));
                continue;
            }
        };
        trials.extend(facts::trials(&name, &device));
        for (kernel, families) in &kernels {
            for index in 0..families.len() {
                let (device, reference) = (Arc::clone(&device), Arc::clone(&reference));
                let (kernel, families) = (kernel.clone(), Arc::clone(families));
                let title = format!("{name}::{kernel}::{}", families[index].name);
                trials.push(Trial::test(title, move || {
                    Ok(run(&kernel, &families[index].cases, &*device, &*reference)?)
                }));
            }
        }
    }
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}

/// A device that cannot be tested.
struct Missing {
    reason: String,
    required: bool,
}

/// Every device under test, by name.
fn devices() -> Vec<(String, Result<Device, Missing>)> {
    let required = required_devices();
    let mut names: Vec<String> = DEVICES.iter().map(|&name| name.to_owned()).collect();
    names.extend(required.iter().filter(|name| !DEVICES.contains(&name.as_str())).cloned());
    let open = |name: String| {
        let listed = DEVICES.contains(&name.as_str());
        // Where only a rasteriser is there, as on a machine without a GPU, it is what we test on.
        let opened = match (name.as_str(), backend::open(&name)) {
            ("wgpu", Err(_)) => backend::open("wgpu:0"),
            (_, opened) => opened,
        };
        let device = match opened {
            Ok(device) if listed => Ok(device),
            Ok(_) => Err("THIN_REQUIRE names it, but this suite does not test it".to_owned()),
            Err(error) => Err(error.to_string()),
        };
        let required = required.contains(&name);
        (name, device.map_err(|reason| Missing { reason, required }))
    };
    names.into_iter().map(open).collect()
}

/// The case files, by kernel.
fn kernels() -> BTreeMap<String, Arc<Vec<Family>>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases");
    let files = fs::read_dir(&folder).expect("tests/cases can be listed");
    let paths = files.map(|file| file.expect("tests/cases can be listed").path());
    paths
        .filter(|path| path.extension().is_some_and(|kind| kind == "toml"))
        .map(|path| {
            let name = path.file_stem().expect("it has an extension").to_string_lossy();
            let text = fs::read_to_string(&path).expect("case files are UTF-8");
            let families =
                case::parse(&text).unwrap_or_else(|error| panic!("tests/cases/{name}: {error}"));
            (name.into_owned(), Arc::new(families))
        })
        .collect()
}

fn run(
    kernel: &str,
    cases: &[Case],
    device: &dyn Backend,
    reference: &dyn Backend,
) -> Result<(), String> {
    for case in cases {
        let run = || {
            let one_op = ops::build(kernel, case);
            case.check_all_read()?;
            let expected = one_op.run(reference)?;
            one_op.compare(&expected, &one_op.run(device)?)
        };
        run().map_err(|error: String| format!("{error}\n  case: {}", case.describe()))?;
    }
    Ok(())
}
