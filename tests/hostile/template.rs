//! Hostile chat templates, given to the library: each ends with a typed error within two seconds and 256 MiB.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use libtest_mimic::{Failed, Trial};
use thintensor::chat::{Conversation, Error, RenderOptions, Template};
use thintensor::tokenizer::{TextAssets, Tokenizer};

use crate::case::fixture;

/// The system's allocator, counting.
struct Counting;

static HELD: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call goes to the system's allocator with the arguments it came with; counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    // SAFETY: the contract of the trait, kept by the caller.
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let held = HELD.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
        PEAK.fetch_max(held, Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { System.alloc(layout) }
    }

    // SAFETY: the contract of the trait, kept by the caller.
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        HELD.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// What a template may take.
const MAX_TIME: Duration = Duration::from_secs(2);
const MAX_BYTES: usize = 256 << 20;

/// A list that is 2^60 items when it is written out.
const DOUBLED: &str = "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}";

/// Names of templates and their sources.
fn templates() -> Vec<(&'static str, String)> {
    let doubled = |rest: &str| format!("{DOUBLED}{rest}");
    let grown = |step: &str, rest: &str| {
        format!(
            "{{% set ns = namespace(x=[1], d={{'a': 1}}) %}}{{% for i in range(60) %}}{step}{{% endfor %}}{rest}"
        )
    };
    let mut all = vec![
        ("concat_of_a_doubled_list", doubled("{{ ns.x ~ '' }}")),
        ("join_of_a_doubled_list", doubled("{{ ns.x | join(',') }}")),
        ("upper_of_a_doubled_list", doubled("{{ ns.x | upper }}")),
        ("format_of_a_doubled_list", doubled("{{ '%s' | format(ns.x) }}")),
        ("pprint_of_a_doubled_list", doubled("{{ ns.x | pprint }}")),
        ("key_of_a_doubled_list", doubled("{{ {ns.x: 1} }}")),
        ("lookup_by_a_doubled_list", doubled("{{ {'a': 1}[ns.x] }}")),
        ("comparison_of_doubled_lists", doubled("{% set y = [ns.x] %}{{ ns.x == y[0] }}{{ [ns.x] < [ns.x, 1] }}")),
        ("search_in_a_doubled_list", doubled("{{ 3 in ns.x }}")),
        ("tojson_of_a_doubled_list", doubled("{{ ns.x | tojson(indent=64) }}")),
        ("print_of_a_doubled_list", doubled("{{ ns.x }}")),
        ("refusal_with_a_doubled_list", doubled("{{ raise_exception(ns.x) }}")),
        ("urlencode_of_a_doubled_list", doubled("{{ ns.x | urlencode }}")),
        ("sort_of_doubled_lists", doubled("{{ [ns.x, ns.x] | sort }}{{ [ns.x, ns.x] | unique | list }}")),
        ("doubled_by_plus", grown("{% set ns.x = [ns.x] + [ns.x] %}", "{{ ns.x ~ '' }}")),
        ("doubled_by_a_map", grown("{% set ns.d = {'a': ns.d, 'b': ns.d} %}", "{{ ns.d ~ '' }}")),
        ("doubled_by_dict", grown("{% set ns.d = dict(a=ns.d, b=ns.d) %}", "{{ ns.d ~ '' }}")),
        ("doubled_by_zip", grown("{% set ns.x = ns.x | zip(ns.x) | list %}", "{{ ns.x ~ '' }}")),
        ("doubled_by_a_tuple", grown("{% set ns.x = (ns.x, ns.x) %}", "{{ ns.x ~ '' }}")),
        ("doubled_by_batch", grown("{% set ns.x = ns.x | batch(1000, ns.x) | list %}", "{{ ns.x ~ '' }}")),
        ("doubled_by_repetition", grown("{% set ns.x = [ns.x] * 2 %}", "{{ ns.x ~ '' }}")),
        ("doubled_by_repetition_of_a_variable", grown("{% set y = [ns.x] %}{% set ns.x = y * 1000 %}", "{{ ns.x ~ '' }}")),
        ("doubled_by_a_choice", grown("{% set ns.x = [ns.x if true else 1, ns.x or 1] %}", "{{ ns.x ~ '' }}")),
        (
            "doubled_by_a_macro",
            "{% macro f(x, n) %}{% if n > 0 %}{{ f([x, x], n - 1) }}{% else %}{{ x ~ '' }}{% endif %}{% endmacro %}{{ f([1], 60) }}".into(),
        ),
        ("namespace_in_itself", "{% set ns = namespace() %}{% set ns.x = ns %}{{ ns ~ '' }}".into()),
        ("namespace_in_a_list_in_itself", "{% set ns = namespace() %}{% set ns.x = [ns] %}{{ ns ~ '' }}".into()),
        (
            "namespaces_in_each_other",
            "{% set a = namespace() %}{% set b = namespace(a=a) %}{% set a.b = b %}{{ a ~ '' }}".into(),
        ),
        (
            "namespace_that_grows_after_it_was_put_away",
            "{% set ns = namespace(x=1) %}{% set l = [ns, ns] %}{% set ns.x = l %}{{ l ~ '' }}".into(),
        ),
        ("loop_in_a_list", "{% for i in [1] %}{% set x = [loop] %}{{ x ~ '' }}{% endfor %}".into()),
        ("nested_deeply_by_a_loop", grown("{% for j in range(99) %}{% set ns.x = [ns.x] %}{% endfor %}", "{{ ns.x ~ '' }}")),
        ("nested_deeply_by_slice", grown("{% for j in range(99) %}{% set ns.x = ns.x | slice(1) | list %}{% endfor %}", "{{ ns.x ~ '' }}")),
        ("constant_repeated", "{{ ([1] * 1000000000000) ~ '' }}".into()),
        ("constant_repeated_in_parts", "{{ ((([1] or 0) * 1000000) * 1000000) ~ '' }}".into()),
        ("string_doubled", "{% set ns = namespace(s='x') %}{% for i in range(64) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}{{ ns.s }}".into()),
        ("string_repeated", "{{ 'x' * 100000000000 }}".into()),
        ("string_replaced", "{% set a = 'a' * 30000 %}{{ a | replace('a', a) | replace('a', a) }}".into()),
        ("string_replaced_by_a_method", "{% set a = 'a' * 30000 %}{{ a.replace('a', a).replace('a', a) }}".into()),
        ("string_joined_by_a_method", "{% set a = 'a' * 30000 %}{{ a.join(a.split('')) }}".into()),
        ("strings_replaced_by_map", "{% set a = 'a' * 30000 %}{{ [a] | map('replace', 'a', a) | list }}".into()),
        ("list_of_large_strings", "{% set a = 'a' * 1000000 %}{% set ns = namespace(x=[]) %}{% for i in range(99999) %}{% set ns.x = ns.x + [a] %}{% endfor %}{{ ns.x ~ '' }}".into()),
        ("format_of_great_width", "{{ '%0999999999d' | format(1) }}".into()),
        ("format_of_great_width_by_a_method", "{{ '{:999999999}'.format(1) }}".into()),
        ("format_of_great_precision", "{{ '{:.999999999f}'.format(1.5) }}".into()),
        ("format_of_a_width_given", "{{ '{:{w}}'.format(1, w=999999999) }}{{ '%*d' | format(999999999, 1) }}".into()),
        ("format_of_great_precision_by_filter", "{{ '%.999999999f' | format(1.5) }}".into()),
        ("indent_of_great_width", "{{ 'a\nb' | indent(4000000000) }}".into()),
        ("center_of_great_width", "{{ 'a' | center(4000000000) }}".into()),
        ("wordwrap_of_much", "{{ ('a ' * 500000) | wordwrap(1) }}".into()),
        ("tojson_with_a_long_separator", "{% set s = 'x' * 1000000 %}{{ range(9999) | list | tojson(separators=[s, s]) }}".into()),
        ("tojson_with_a_long_indent", "{% set s = 'x' * 1000000 %}{{ range(9999) | list | tojson(indent=s) }}".into()),
        ("comparisons_in_a_loop", "{% set x = range(90000) | list %}{% set y = range(90000) | list %}{% for i in range(99999) %}{% if [x] == [y] %}{% endif %}{% endfor %}".into()),
        ("searches_in_a_loop", "{% set x = [range(90000) | list] %}{% for i in range(99999) %}{% if 'a' in x %}{% endif %}{% endfor %}".into()),
        ("sums_of_lists", "{% set x = [[1]] * 1 %}{{ x | sum(start=[]) }}".into()),
        ("tests_of_a_large_text", "{% set s = 'a' * 4000000 %}{% for i in range(99999) %}{% if s is lower %}{% endif %}{% endfor %}".into()),
        ("items_of_a_large_text", "{% set s = 'ä' * 2000000 %}{% for i in range(99999) %}{% set x = s[1999990] %}{% endfor %}{{ s.x.y }}".into()),
        ("loops_over_a_large_text", "{% set s = 'ä' * 2000000 %}{% for i in range(9999) %}{% for c in s %}{% break %}{% endfor %}{% endfor %}{{ s.x.y }}".into()),
        ("loops_over_a_large_list", "{% set s = range(99999) | list %}{% for i in range(99999) %}{% for c in s %}{% break %}{% endfor %}{% endfor %}{{ s.x.y }}".into()),
        ("loops_over_a_sorted_list", "{% for i in range(99999) %}{% for c in range(99999) | sort(reverse=true) %}{% break %}{% endfor %}{% endfor %}{{ s.x.y }}".into()),
        ("loops_with_a_condition", "{% for i in range(99999) %}{% for c in range(99999) if c > 99997 %}{% endfor %}{% endfor %}{{ s.x.y }}".into()),
        ("lists_taken_apart", "{% for i in range(99999) %}{% set a, b = range(99999) %}{% endfor %}".into()),
        ("list_grown_one_by_one", "{% set ns = namespace(x=[]) %}{% for i in range(99999) %}{% set ns.x = ns.x + [i] %}{% endfor %}{{ ns.x | length }}{{ s.x.y }}".into()),
        ("list_grown_and_read_backwards", "{% set ns = namespace(x=[]) %}{% for i in range(900) %}{% set ns.x = [i] + ns.x %}{% endfor %}{{ ns.x[::-1] | list | length }}{{ s.x.y }}".into()),
        ("slices_of_slices", "{% set ns = namespace(x=range(999) | list) %}{% for i in range(990) %}{% set ns.x = ns.x[1:] %}{% endfor %}{{ ns.x }}{{ s.x.y }}".into()),
        ("reversed_and_reversed", "{% set ns = namespace(x=range(99) | list) %}{% for i in range(9999) %}{% set ns.x = ns.x | reverse %}{% endfor %}{{ ns.x | list }}{{ s.x.y }}".into()),
        ("sliced_backwards_again_and_again", "{% set ns = namespace(x=range(9)) %}{% for i in range(9999) %}{% set ns.x = ns.x[::-1] %}{% endfor %}{{ ns.x | list }}{{ s.x.y }}".into()),
        ("macros_in_macros", "{% macro a(x) %}{{ x }}{% endmacro %}{% set ns = namespace(f=a) %}{% for i in range(9999) %}{% set ns.g = ns.f(ns.f(ns.f(i))) %}{% endfor %}{{ ns.x.y }}".into()),
        ("captures_in_captures", "{% set ns = namespace(s='x') %}{% for i in range(99) %}{% set y %}{{ ns.s }}{{ ns.s }}{% endset %}{% set ns.s = y %}{% endfor %}".into()),
        ("loops_in_loops", "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}".into()),
        ("output_without_end", "{% for a in range(99999) %}{% for b in range(999) %}xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx{% endfor %}{% endfor %}".into()),
        ("macro_without_end", "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}".into()),
        ("macro_that_doubles", "{% macro f(n) %}{{ f(n + 1) ~ f(n + 1) }}{% endmacro %}{{ f(0) }}".into()),
        ("caller_without_end", "{% macro f() %}{% call f() %}{{ caller() }}{% endcall %}{% endmacro %}{{ f() }}".into()),
        ("loop_recursion", "{% for x in [[[1]]] recursive %}{{ loop([[x]]) }}{% endfor %}".into()),
        ("block_without_end", "{% block b %}{{ self.b() }}{% endblock %}".into()),
        ("include_of_itself", "{% include 'default' %}".into()),
        ("extends_itself", "{% extends 'default' %}".into()),
        ("import_of_itself", "{% import 'default' as x %}{{ x }}".into()),
        ("arguments_unpacked", "{{ dict(*[1]) }}".into()),
        ("debug_of_everything", "{{ debug() }}".into()),
        ("unknown_attribute", "{{ nothing.at.all }}".into()),
        ("power_of_powers", "{{ 9 ** 9 ** 9 ** 9 }}".into()),
        ("division_by_zero", "{{ 1 // 0 }}{{ 1 % 0 }}".into()),
        ("smallest_number_divided", "{{ (-9223372036854775807 - 1) // -1 }}{{ (0 - 170141183460469231731687303715884105727 - 1) // (0 - 1) }}{{ nothing.x }}".into()),
        ("clock_format", "{{ strftime_now('%Q%!%') }}".into()),
        ("clock_format_of_great_width", "{{ strftime_now('%' ~ '9' * 9 ~ 'd') }}".into()),
        ("range_of_everything", "{{ range(9999999999999) | list | length }}".into()),
    ];
    all.push(("chain_of_operators", format!("{{{{ x{} }}}}", " ~ 1".repeat(100_000))));
    all.push(("chain_of_constants", format!("{{{{ 1{} }}}}", "+1".repeat(100_000))));
    all.push(("chain_of_filters", format!("{{{{ x{} }}}}", "|list".repeat(100_000))));
    all.push(("chain_of_attributes", format!("{{{{ x{} }}}}", ".a".repeat(100_000))));
    all.push(("chain_of_items", format!("{{{{ x{} }}}}", "[0]".repeat(100_000))));
    all.push(("many_signs", format!("{{{{ {}1 }}}}", "-".repeat(100_000))));
    all.push(("many_nots", format!("{{{{ {}1 }}}}", "not ".repeat(100_000))));
    all.push((
        "many_parentheses",
        format!("{{{{ {}1{} }}}}", "(".repeat(9_000), ")".repeat(9_000)),
    ));
    all.push((
        "many_choices",
        format!("{{% if a %}}{}{{% endif %}}{{{{ a.b.c }}}}", "{% elif a %}".repeat(9_900)),
    ));
    all.push((
        "many_ifs",
        "{% if 1 %}".repeat(4_900) + &"{% endif %}".repeat(4_900) + "{{ a.b.c }}",
    ));
    all.push((
        "many_loops",
        "{% for a in [1] %}".repeat(4_900) + &"{% endfor %}".repeat(4_900) + "{{ a.b.c }}",
    ));
    all.push(("source_of_two_megabytes", "x".repeat(2 << 20)));
    all
}

/// What a template did.
struct Run {
    outcome: Result<usize, Error>,
    time: Duration,
    bytes: usize,
}

fn run(source: &str) -> Run {
    let read = |name: &str| std::fs::read(fixture(&format!("text/{name}"))).expect("a fixture");
    let assets = TextAssets {
        tokenizer_json: Some(read("chatml.tokenizer.json")),
        tokenizer_config: Some(read("chatml.tokenizer_config.json")),
        ..TextAssets::default()
    };
    let tokenizer = Tokenizer::from_assets(&assets).expect("a tokenizer");
    let mut conversation = Conversation::new();
    conversation.push("user", "hi");
    let template = TextAssets { chat_template: Some(source.into()), ..TextAssets::default() };

    let before = HELD.load(Ordering::Relaxed);
    PEAK.store(before, Ordering::Relaxed);
    let start = Instant::now();
    let outcome = Template::from_assets(&template)
        .and_then(|it| it.render_ids(&tokenizer, &conversation, &RenderOptions::default()))
        .map(|rendered| rendered.text.len());
    let time = start.elapsed();
    Run { outcome, time, bytes: PEAK.load(Ordering::Relaxed).saturating_sub(before) }
}

pub(crate) fn trials() -> Vec<Trial> {
    let check = |(name, source): (&'static str, String)| {
        Trial::test(format!("template_{name}"), move || {
            let run = run(&source);
            if run.time > MAX_TIME || run.bytes > MAX_BYTES {
                return Err(Failed::from(format!("{:?} and {} bytes", run.time, run.bytes)));
            }
            match run.outcome {
                Ok(written) => Err(Failed::from(format!("{written} bytes were written"))),
                Err(_) => Ok(()),
            }
        })
    };
    templates().into_iter().map(check).collect()
}

pub(crate) fn print_table() -> Result<(), String> {
    println!("| chat template | ms | MiB | what the user sees |\n|---|---|---|---|");
    for (name, source) in templates() {
        let run = run(&source);
        let said =
            run.outcome.map_or_else(|error| error.to_string(), |bytes| format!("{bytes} bytes"));
        let mib = run.bytes as f64 / f64::from(1 << 20);
        println!("| {name} | {} | {mib:.1} | {} |", run.time.as_millis(), said.replace('|', "\\|"));
    }
    println!("\n| ordinary chat template | bytes | ms a rendering, median of 21 |\n|---|---|---|");
    let mut paths: Vec<_> = std::fs::read_dir(fixture("text/templates"))
        .map_err(|error| error.to_string())?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .collect();
    paths.sort();
    for path in paths {
        let source = std::fs::read_to_string(&path).map_err(|error| error.to_string())?;
        let mut times: Vec<Duration> = (0..21).map(|_| run(&source).time).collect();
        times.sort();
        let name = path.file_stem().unwrap_or_default().to_string_lossy();
        println!("| {name} | {} | {:.2} |", source.len(), times[10].as_secs_f64() * 1e3);
    }
    println!();
    Ok(())
}
