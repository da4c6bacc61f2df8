//! The configuration reader.

use crate::harness::{limits, rules};
use redis_cell_client::{Fixed, FixedWindow, Limit, Places, Rate, Weekday};
use redis_cell_envoy::config::{Bound, Config, Found};
use redis_cell_envoy::proto::{Entry, RateLimitDescriptor};
use std::time::Duration;

fn files(texts: &[&str]) -> Vec<(String, String)> {
    texts.iter().zip(["a.yaml", "b.yaml"]).map(|(text, name)| (name.to_owned(), (*text).to_owned())).collect()
}

fn read(text: &str) -> Config {
    Config::read(&files(&[text]), false).unwrap_or_else(|problems| panic!("{text}\n{}", lines(&problems)))
}

fn lines(problems: &[redis_cell_envoy::yaml::Problem]) -> String {
    problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

/// All errors, a line for each.
fn errors(text: &str) -> String {
    lines(&Config::read(&files(&[text]), false).expect_err(text))
}

/// `key=value,key=value`.
pub fn descriptor(text: &str) -> RateLimitDescriptor {
    let entries = text.split(',').map(|entry| {
        let (key, value) = entry.split_once('=').unwrap_or((entry, ""));
        Entry { key: key.to_owned(), value: value.to_owned() }
    });
    RateLimitDescriptor { entries: entries.collect(), ..RateLimitDescriptor::default() }
}

fn find(config: &Config, domain: &str, text: &str) -> Option<Found> {
    config.find(domain, &descriptor(text))
}

/// The hits per unit of the rule of a descriptor.
fn count(config: &Config, domain: &str, text: &str) -> Option<u32> {
    find(config, domain, text).map(|found| found.rule.requests_per_unit)
}

/// The name of the metric of a descriptor.
fn metric(config: &Config, domain: &str, text: &str) -> String {
    let found = find(config, domain, text).unwrap();
    found.levels.as_ref().unwrap_or(&found.rule.levels).join(".")
}

/// One descriptor with this rate limit.
fn limited(rate_limit: &str) -> String {
    format!("domain: d\ndescriptors:\n  - key: k\n    rate_limit: {{{rate_limit}}}\n")
}

fn bound(rate_limit: &str) -> Bound {
    find(&read(&limited(rate_limit)), "d", "k=v").unwrap().rule.bound
}

const NESTED: &str = "
# Calls to a data base.
domain: calls
descriptors:
  - key: to
    value: db
    descriptors:
      - key: from
        rate_limit: {unit: second, requests_per_unit: 5}
      - key: from
        value: batch
        rate_limit: {unit: second, requests_per_unit: 1}
  - key: to
    rate_limit:
      unit: minute
      requests_per_unit: 100
  - key: to
    value: free
";

#[test]
fn the_most_specific_descriptor_of_each_level_decides() {
    let config = read(NESTED);
    assert_eq!(count(&config, "calls", "to=db,from=web"), Some(5));
    assert_eq!(count(&config, "calls", "to=db,from=batch"), Some(1));
    assert_eq!(count(&config, "calls", "to=mail"), Some(100));
    // A descriptor without a limit admits everything, and so does one that is shorter or longer than all
    // rules.
    assert_eq!(count(&config, "calls", "to=free"), None);
    assert_eq!(count(&config, "calls", "to=db"), None);
    assert_eq!(count(&config, "calls", "to=mail,from=web"), None);
    assert_eq!(count(&config, "calls", "to=db,from=web,for=me"), None);
    assert_eq!(count(&config, "calls", "from=web"), None);
    assert_eq!(count(&config, "others", "to=mail"), None);
}

#[test]
fn a_wildcard_stands_anywhere_and_a_value_goes_before_it() {
    let config = read(&rules(&limits(
        "path, value: /a/*/edit => 1; path, value: /a/* => 2; path, value: /a/b => 3; \
         path, value: '*x*y*' => 4; path => 5; tail, value: '*.png' => 6; both, value: 'aa*aa' => 7",
    )));
    for (descriptor, expected) in [
        ("path=/a/7/edit", Some(1)),
        ("path=/a//edit", Some(1)),
        ("path=/a/7/view", Some(2)),
        ("path=/a/", Some(2)),
        ("path=/a/b", Some(3)),
        ("path=xy", Some(4)),
        ("path=1x2y3", Some(4)),
        ("path=yx", Some(5)),
        ("path=", Some(5)),
        ("tail=a.png", Some(6)),
        ("tail=a.jpg", None),
        ("both=aaaa", Some(7)),
        ("both=aaa", None),
    ] {
        assert_eq!(count(&config, "d", descriptor), expected, "{descriptor}");
    }
}

#[test]
fn each_value_has_its_own_key_unless_a_wildcard_shares_it() {
    let text = limits("file, value: pub/*, share_threshold: true => 1; file, value: own/* => 1");
    let config = read(&rules(&text));
    let key = |text: &str| find(&config, "d", text).unwrap().key;
    assert_eq!(key("file=pub/a"), "{d};file=pub/*|fixed:year");
    assert_eq!(key("file=pub/a"), key("file=pub/b"));
    assert_eq!(key("file=own/a"), "{d};file=own/a|fixed:year");
    assert_ne!(key("file=own/a"), key("file=own/b"));
}

#[test]
fn no_two_descriptors_have_the_same_key() {
    let rule = "rate_limit: {unit: day, requests_per_unit: 1}";
    let config = read(&format!(
        "domain: d{{}}\ndescriptors:\n  - {{key: a, {rule}, descriptors: [{{key: b, {rule}}}]}}\n  - {{key: a;b, {rule}}}\n"
    ));
    let key = |entries: &[(&str, &str)]| {
        let entries = entries.iter().map(|(key, value)| Entry { key: (*key).into(), value: (*value).into() });
        let descriptor = RateLimitDescriptor { entries: entries.collect(), ..Default::default() };
        config.find("d{}", &descriptor).unwrap().key
    };
    let mut keys = vec![
        key(&[("a", "1;b=2")]),
        key(&[("a", "1"), ("b", "2")]),
        key(&[("a;b", "2")]),
        key(&[("a", "1%3Bb=2")]),
        key(&[("a", "}1|{")]),
    ];
    assert_eq!(keys[0], "{d%7B%7D};a=1%3Bb%3D2|fixed:day");
    assert_eq!(keys[1], "{d%7B%7D};a=1;b=2|fixed:day");
    keys.sort();
    keys.dedup();
    assert_eq!(keys.len(), 5);
}

#[test]
fn the_hash_tag_is_the_domain_or_the_first_entry_or_nothing() {
    let text =
        "descriptors: [{key: a, descriptors: [{key: b, rate_limit: {unit: day, requests_per_unit: 1}}]}]";
    for (tag, expected) in [
        ("domain", "{d};a=1;b=2|fixed:day"),
        ("first_entry", "{d;a=1};b=2|fixed:day"),
        ("none", "d;a=1;b=2|fixed:day"),
    ] {
        let config = read(&format!("domain: d\nhash_tag: {tag}\n{text}"));
        assert_eq!(find(&config, "d", "a=1,b=2").unwrap().key, expected);
    }
}

#[test]
fn metrics_are_named_after_the_configuration() {
    let config = read(
        "
domain: m
descriptors:
  - {key: plain, rate_limit: {unit: day, requests_per_unit: 1}}
  - {key: plain, value: x, rate_limit: {unit: day, requests_per_unit: 1}}
  - {key: all, detailed_metric: true, rate_limit: {unit: day, requests_per_unit: 1}}
  - {key: wild, value: w*, rate_limit: {unit: day, requests_per_unit: 1}}
  - key: route
    value_to_metric: true
    descriptors:
      - key: verb
        value: re*
        value_to_metric: true
        descriptors:
          - {key: who, rate_limit: {unit: day, requests_per_unit: 1}}
  - key: shared
    value: s/*
    share_threshold: true
    value_to_metric: true
    descriptors:
      - {key: who, detailed_metric: true, rate_limit: {unit: day, requests_per_unit: 1}}
",
    );
    let metric = |text: &str| metric(&config, "m", text);
    assert_eq!(metric("plain=anything"), "m.plain");
    assert_eq!(metric("plain=x"), "m.plain_x");
    assert_eq!(metric("all=anything"), "m.all_anything");
    assert_eq!(metric("wild=w1"), "m.wild_w*");
    assert_eq!(metric("route=api,verb=read,who=7"), "m.route_api.verb_read.who");
    assert_eq!(metric("shared=s/1,who=7"), "m.shared_s/*.who_7");
}

#[test]
fn units_and_algorithms_become_limits() {
    let seconds = Duration::from_secs;
    for (limit, window) in [
        ("unit: SECOND", FixedWindow::period(seconds(1))),
        ("unit: minute", FixedWindow::period(seconds(60))),
        ("unit: hour", FixedWindow::hour()),
        ("unit: day", FixedWindow::day()),
        ("unit: week", FixedWindow::week()),
        ("unit: month", FixedWindow::month()),
        ("unit: year", FixedWindow::year()),
        ("unit: minute, unit_multiplier: 5", FixedWindow::period(seconds(300))),
        ("unit: month, from: 15, utc_offset: '-03:30'", FixedWindow::month_from(15).utc_offset_minutes(-210)),
        ("unit: week, from: 7", FixedWindow::week_from(Weekday::Sunday)),
    ] {
        let limit = format!("{limit}, requests_per_unit: 3");
        assert_eq!(bound(&limit), Bound::Limit(Limit::Fixed(Fixed::new(3, window))), "{limit}");
    }
    let rate = Rate::new(30, seconds(60));
    let with = |algorithm: &str| bound(&format!("unit: minute, requests_per_unit: 30, {algorithm}"));
    assert_eq!(with("algorithm: gcra"), Bound::Limit(rate.burst(29).into()));
    assert_eq!(with("algorithm: gcra, burst: 16"), Bound::Limit(rate.burst(15).into()));
    assert_eq!(with("algorithm: bucket, burst: 16"), Bound::Limit(Limit::Bucket(rate.capacity(16))));
    assert_eq!(with("algorithm: funnel"), Bound::Limit(Limit::Funnel(rate.capacity(30))));
    assert_eq!(with("algorithm: window"), Bound::Limit(Limit::Window(rate)));
    assert_eq!(with("algorithm: log"), Bound::Limit(Limit::Log(rate)));
    assert_eq!(with("algorithm: lease"), Bound::Places(Places(30), seconds(60)));
    assert_eq!(bound("unit: minute, requests_per_unit: 0"), Bound::Nothing);
    assert_eq!(bound("unlimited: true"), Bound::Unlimited);
}

#[test]
fn values_are_read_as_they_are_written() {
    let config = read(&rules(&limits(
        "code, value: 007 => 1; code, value: \"7\" => 2; code, value: true, shadow_mode: yes => 3; \
         code, value: ~ => 4",
    )));
    for (descriptor, expected) in [("code=007", 1), ("code=7", 2), ("code=true", 3), ("code=null", 4)] {
        assert_eq!(count(&config, "d", descriptor), Some(expected), "{descriptor}");
    }
    assert!(find(&config, "d", "code=true").unwrap().rule.shadow);
}

#[test]
fn what_is_not_known_is_an_error_with_its_line_and_key() {
    assert_eq!(
        errors("domain: d\ndescriptors:\n  - key: k\n    ratelimit:\n      unit: day\n"),
        "a.yaml:4: descriptors[0].ratelimit: unknown key 'ratelimit'; known here are key, value, rate_limit, \
         descriptors, shadow_mode, quota_mode, detailed_metric, value_to_metric, share_threshold, metadata"
    );
    // A key that is misspelt is named, and so is the one that is missing because of it.
    let known = "unit, requests_per_unit, unlimited, name, replaces, algorithm, burst, unit_multiplier, \
                 utc_offset, from, ban, batch, hold, overdraft, headers";
    for misspelt in ["requestsperunit", "requests_per_units", "Requests_Per_Unit", "request_per_unit"] {
        assert_eq!(
            errors(&format!(
                "domain: d\ndescriptors:\n- key: k\n  rate_limit:\n    unit: day\n    {misspelt}: 5\n"
            )),
            format!(
                "a.yaml:4: descriptors[0].rate_limit: has no requests_per_unit\n\
                 a.yaml:6: descriptors[0].rate_limit.{misspelt}: unknown key '{misspelt}'; known here are {known}"
            )
        );
    }
    for (key, limit) in [
        ("units", "units: day, requests_per_unit: 5"),
        ("replaces[0].named", "unit: day, requests_per_unit: 5, replaces: [{named: a}]"),
        ("shadow_mode", "unit: day, requests_per_unit: 5, shadow_mode: true"),
    ] {
        let text = errors(&limited(limit));
        assert!(text.contains(&format!("a.yaml:4: descriptors[0].rate_limit.{key}: unknown key")), "{text}");
    }
    let text = errors("domains: d\ndescriptor: []\n");
    let expected =
        ["a.yaml:1: domains: unknown key", "a.yaml:1: the file has no domain", "a.yaml:2: descriptor: "];
    for (line, expected) in text.lines().zip(expected) {
        assert!(line.starts_with(expected), "{text}");
    }
    for (text, expected) in [
        (
            "domain: d\nlimits: []\n",
            "a.yaml:2: limits: unknown key 'limits'; known here are domain, descriptors, hash_tag",
        ),
        ("descriptors:\n  - key: k\n", "a.yaml:1: the file has no domain"),
        ("domain: ''\n", "a.yaml:1: the file has no domain"),
        ("[1]: d\n", "a.yaml:1: a key must be a text"),
        ("", "a.yaml:1: the file is empty"),
        ("domain: d\n---\ndomain: e\n", "a.yaml:3: a file has one document, with one domain"),
        ("domain: d\ndomain: e\n", "a.yaml:2: duplicated key in mapping: domain"),
        ("domain: d\ndescriptors: none\n", "a.yaml:2: descriptors: must be a list"),
    ] {
        assert_eq!(errors(text), expected);
    }
    for (descriptor, expected) in [
        ("- value: v", "3: descriptors[0]: the descriptor has no key"),
        ("- a", "3: descriptors[0]: must be a mapping of keys to values"),
        ("- key: k*", "3: descriptors[0].key: a key has no wildcards; they are for values"),
        (
            "- {key: k,\n value: v,\n share_threshold: true}",
            "5: descriptors[0].share_threshold: needs a value with '*'",
        ),
        (
            "- {key: k,\n shadow_mode: maybe}",
            "4: descriptors[0].shadow_mode: must be true or false, and is 'maybe'",
        ),
    ] {
        assert_eq!(errors(&format!("domain: d\ndescriptors:\n{descriptor}\n")), format!("a.yaml:{expected}"));
    }
    assert!(errors("domain: d\ndescriptors:\n  - {key: k\n").starts_with("a.yaml:4: "));
    let twice = errors(&limited("unit: day, requests_per_unit: 5, 'unit': hour"));
    assert_eq!(twice, "a.yaml:4: descriptors[0].rate_limit.unit: the key is given twice");
}

#[test]
fn limits_that_make_no_sense_are_errors() {
    let error =
        |rate_limit: &str| errors(&limited(rate_limit)).replace("a.yaml:4: descriptors[0].rate_limit", "");
    for line in "\
unit: foo, requests_per_unit: 5 => .unit: must be second, minute, hour, day, week, month or year, and is 'foo'
requests_per_unit: 5 => : has no unit, and is not unlimited
unit: day, requests_per_unit: -1 => \
    .requests_per_unit: must be a whole number from 0 to 4294967295, and is '-1'
unlimited: true, unit: day => .unit: an unlimited rule has no unit
unlimited: true, burst: 5 => .burst: an unlimited rule has no burst
unlimited: true, batch: 5 => .batch: an unlimited rule has no batch
FIVE, name: a, replaces: [{name: a}] => .replaces[0]: a rule does not replace itself
FIVE, replaces: [{name: }] => .replaces[0]: has no name
FIVE, algorithm: leaky => \
    .algorithm: must be fixed, gcra, window, log, bucket, funnel or lease, and is 'leaky'
FIVE, burst: 5 => .burst: is for algorithm: gcra, bucket or funnel
FIVE, from: 5 => .from: is for weeks and months
FIVE, algorithm: log, from: 5 => .from: is for algorithm: fixed
unit: month, unit_multiplier: 3, requests_per_unit: 5 => \
    .unit: has no unit_multiplier: months and years differ in length
FIVE, utc_offset: '+15:00' => .utc_offset: must be an offset such as +05:30, and is '+15:00'
FIVE, headers: {'a b': c} => .headers.a b: is not a header of HTTP
FIVE, hold: 1s => .hold: is for rules with a batch
FIVE, algorithm: log, batch: 5 => .batch: is for algorithm: fixed or gcra
FIVE, batch: 5, ban: 1m => .batch: is not for rules with a ban, which the server alone knows"
        .lines()
    {
        let (limit, expected) = line.split_once(" => ").unwrap();
        assert_eq!(error(&limit.replace("FIVE", "unit: day, requests_per_unit: 5")), expected);
    }
    for wrong in ["10", "0s", "36501d", "99999999999999999999d", "-1s", "1 h"] {
        let expected = format!("must be a duration from 1us to 36500d, and is '{wrong}'");
        for (name, more) in [("ban", ""), ("hold", "batch: 5, ")] {
            let limit = format!("unit: day, requests_per_unit: 5, {more}{name}: {wrong}");
            assert_eq!(error(&limit), format!(".{name}: {expected}"));
        }
    }
    let quota = limited("unit: day, requests_per_unit: 5, batch: 5") + "    quota_mode: true\n";
    assert_eq!(errors(&quota), "a.yaml:4: descriptors[0].rate_limit: with quota_mode a rule has no batch");
    // Limits that the server would reject.
    assert!(error("unit: day, requests_per_unit: 2000000, algorithm: log").starts_with(": "));
}

#[test]
fn all_errors_are_found_at_once() {
    let text = "
domain: d
descriptors:
  - key: a
    rate_limit: {unit: foo, requests_per_unit: 1}
  - key: b
    typo: 1
    shadow_mode: maybe
    quota_mode: perhaps
    descriptors:
      - value: c
        rate_limit: {requestsperunit: 5, ban: never, algorithm: leaky}
";
    let found = errors(text);
    let places: Vec<&str> = found.lines().map(|line| line.split(": ").next().unwrap()).collect();
    let at = |line: usize| format!("a.yaml:{line}");
    assert_eq!(places, [5, 7, 8, 9, 11, 12, 12, 12, 12, 12].map(at), "{found}");
    for key in ["requestsperunit", "ban", "algorithm", "requests_per_unit", "unit"] {
        assert!(found.contains(key), "{found}");
    }
    // In files, too.
    let problems = Config::read(&files(&[text, "domain: e\nlimits: 1\n"]), false).unwrap_err();
    assert!(
        lines(&problems).ends_with(
            "\nb.yaml:2: limits: unknown key 'limits'; known here are domain, descriptors, hash_tag"
        )
    );
    assert_eq!(problems.len(), 11);
}

#[test]
fn anchors_and_merge_keys_repeat_what_is_written_once() {
    let config = read(
        "
domain: d
descriptors:
  - key: a
    rate_limit: &daily {unit: day, requests_per_unit: 5}
  - {key: b, rate_limit: *daily}
  - key: c
    rate_limit:
      <<: *daily
      requests_per_unit: 7
  - &detailed {key: e, detailed_metric: true, rate_limit: *daily}
  - {<<: [{key: x, value: y}, *detailed], key: f}
",
    );
    // Keys beside a merge key take precedence over merged keys, and an earlier mapping over a later one.
    for (text, expected) in [("a=1", 5), ("b=1", 5), ("c=1", 7), ("e=1", 5), ("f=y", 5)] {
        assert_eq!(count(&config, "d", text), Some(expected), "{text}");
    }
    assert_eq!(count(&config, "d", "f=1"), None);
    assert_eq!(metric(&config, "d", "e=1"), "d.e_1");
    // An error in what is merged is where it was written.
    assert!(
        errors("domain: d\ndescriptors:\n  - {key: a, rate_limit: &l {unit: day, typo: 5}}\n  - key: b\n    rate_limit:\n      <<: *l\n")
            .contains("\na.yaml:3: descriptors[1].rate_limit.typo: unknown key")
    );
    assert_eq!(errors("domain: d\n<<: 5\n"), "a.yaml:2: <<: must be a mapping of keys to values");
}

#[test]
fn numbers_are_those_that_the_reference_reads_or_errors() {
    let number = |text: &str| {
        Config::read(&files(&[&limited(&format!("unit: day, requests_per_unit: {text}"))]), false)
    };
    for (text, expected) in [("1_000_000", 1_000_000), ("0", 0), ("4294967295", u32::MAX)] {
        let config = number(text).unwrap_or_else(|problems| panic!("{text}: {}", lines(&problems)));
        assert_eq!(count(&config, "d", "k=v"), Some(expected));
    }
    // The reference reads 010 as eight.
    for text in ["010", "_1", "1_", "0x10", "1e3", "5.0", "4294967296", "''", "1__0"] {
        assert!(number(text).is_err(), "{text}");
    }
}

#[test]
fn an_empty_document_at_the_end_is_no_document() {
    let config = read(&format!("---\n{}---\n", limited("unit: day, requests_per_unit: 5")));
    assert_eq!(count(&config, "d", "k=1"), Some(5));
    let config = read(&format!("---\n{}...\n---\n# nothing\n", limited("unit: day, requests_per_unit: 5")));
    assert_eq!(count(&config, "d", "k=1"), Some(5));
}

#[test]
fn files_of_a_domain_agree_about_its_hash_tag() {
    let rule = |key: &str, tag: &str| rules(&limits(&format!("{key} => 1"))).replacen('\n', tag, 1);
    let both = |one: &str, other: &str| Config::read(&files(&[&rule("a", one), &rule("b", other)]), true);
    let config = both("\n", "\nhash_tag: none\n").unwrap();
    assert_eq!(find(&config, "d", "a=1").unwrap().key, "d;a=1|fixed:year");
    let problems = both("\nhash_tag: first_entry\n", "\nhash_tag: none\n").unwrap_err();
    assert_eq!(
        lines(&problems),
        "b.yaml:2: hash_tag: another file says another one for the domain 'd', which begins in a.yaml:1"
    );
}

#[test]
fn values_in_levels_without_end_are_an_error() {
    for (open, close) in [("[", "]"), ("{a: ", "}"), ("- ", ""), ("? ", "")] {
        let text = format!("domain: d\ndescriptors: {}{}", open.repeat(100_000), close.repeat(100_000));
        assert!(Config::read(&files(&[&text]), false).is_err(), "{open}");
    }
    let mut text = "domain: d\ndescriptors:\n".to_owned();
    for level in 0..3_000 {
        let indent = "  ".repeat(level);
        text.extend([&indent, "- key: k\n", &indent, "  descriptors:\n"]);
    }
    assert!(Config::read(&files(&[&text]), false).is_err());
}

#[test]
fn a_domain_is_in_one_file_unless_files_are_merged() {
    let [first, second] = ["a => 1", "b => 1"].map(|limit| rules(&limits(limit)));
    let both = files(&[&first, &second]);
    let problems = Config::read(&both, false).unwrap_err();
    assert_eq!(lines(&problems), "b.yaml:1: domain: duplicate domain 'd', which is in a.yaml:1");
    let merged = Config::read(&both, true).unwrap();
    assert_eq!(count(&merged, "d", "a=1"), Some(1));
    assert_eq!(count(&merged, "d", "b=1"), Some(1));
    let problems = Config::read(&files(&[&first, &first]), true).unwrap_err();
    assert_eq!(
        lines(&problems),
        "b.yaml:3: descriptors[0]: duplicate descriptor 'd.a', which is in a.yaml:3"
    );
}

#[test]
fn bytes_at_random_are_errors_and_not_panics() {
    let words = [
        "domain:", "d", "\n", "  ", "- ", "key:", "{", "}", "[", "]", "*a", "&a", "|", "'", "!!int", "é",
        "\t", "? ",
    ];
    let mut state: u64 = 7;
    for _ in 0..5_000 {
        let mut text = String::new();
        for _ in 0..12 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            text.push_str(words[(state >> 33) as usize % words.len()]);
        }
        let _ = Config::read(&files(&[&text]), false);
    }
}
