//! The page of the playground in a real browser: every control, the address that is shared, and the decisions
//! of the program in WebAssembly, which equal the decisions of the same program on this machine.
//!
//! `make test-apps` builds the page and names it and the browser: `REDIS_CELL_PLAYGROUND`,
//! `REDIS_CELL_BROWSER`.

// A test should fail at the first unexpected value.
#![allow(
    clippy::arithmetic_side_effects,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used
)]

mod chromium;

use std::collections::BTreeSet;

use chromium::{Page, Site};
use serde_json::{Value, json};

/// The picture that this machine's program returns for the request of the page.
fn expected(page: &mut Page) -> Value {
    let request = page.evaluate("JSON.stringify(state)");
    serde_json::from_str(&redis_cell_playground::answer(request.as_str().unwrap())).unwrap()
}

/// Fails unless the page shows the answer of this machine's program.
fn same_picture(page: &mut Page) -> Value {
    let expected = expected(page);
    let shown = page.evaluate("JSON.stringify(picture)");
    let shown: Value = serde_json::from_str(shown.as_str().unwrap()).unwrap();
    assert_eq!(shown, expected);
    shown
}

#[test]
fn every_example_shows_the_decisions_of_the_core() {
    let mut page = Page::open("");
    let examples = page.evaluate("Object.keys(EXAMPLES)");
    let mut kinds = BTreeSet::new();
    for example in examples.as_array().unwrap() {
        page.choose("example", example.as_str().unwrap());
        let picture = same_picture(&mut page);
        let refused: u64 =
            picture["bins"].as_array().unwrap().iter().map(|bin| bin[1].as_u64().unwrap()).sum();
        assert!(refused > 0, "{example}: {picture}");
        assert_eq!(picture["error"], Value::Null, "{example}");
        assert_eq!(page.evaluate("document.querySelectorAll('#reply td').length % 10"), 0);
        // In a cluster, the keys of a call must share a slot.
        let slots =
            page.evaluate("new Set(limiters.map(({ key }) => key.match(/\\{([^}]+)\\}/)?.[1] ?? key)).size");
        assert_eq!(slots, 1, "{example}");
        page.screenshot(&format!("{} {}", example.as_str().unwrap(), picture["limiters"][0]["kind"]));
        kinds.extend(picture["limiters"].as_array().unwrap().iter().map(|it| it["kind"].to_string()));
    }
    assert_eq!(kinds.len(), 7, "{kinds:?}");
}

#[test]
fn every_control_changes_the_picture_or_the_request() {
    let mut page = Page::open("#pattern=random&rate=90&retry=jitter&clients=3");
    // Every slider of the form, by the keyboard: one step to the right and one to the left.
    let sliders = page.evaluate("[...document.querySelectorAll('input[type=range]')].filter((it) => it.offsetParent).map((it) => it.id)");
    let sliders = sliders.as_array().unwrap().clone();
    assert!(sliders.len() >= 10, "{sliders:?}");
    for slider in &sliders {
        let id = slider.as_str().unwrap();
        let before = page.evaluate("JSON.stringify(state)");
        page.focus(id);
        page.key("ArrowRight");
        assert_ne!(page.evaluate("JSON.stringify(state)"), before, "{id}");
        same_picture(&mut page);
        page.key("ArrowLeft");
        assert_eq!(page.evaluate("JSON.stringify(state)"), before, "{id}");
    }
    // Every kind of limiter, and what its text fields take.
    for kind in ["FUNNEL", "BUCKET", "FIXED", "WINDOW", "LOG", "LEASE", "THROTTLE"] {
        page.choose("limiter1-kind", kind);
        let picture = same_picture(&mut page);
        assert_eq!(picture["limiters"][0]["kind"], kind);
    }
    page.write("limiter1-max_burst", "3");
    assert_eq!(same_picture(&mut page)["limiters"][0]["most"], 4);
    page.write("limiter1-key", "<address>");
    assert!(same_picture(&mut page)["copy"]["command"].as_str().unwrap().starts_with("CL.THROTTLE 198.51."));
    page.click("limiter1-shadow");
    assert_eq!(same_picture(&mut page)["limiters"][0]["shadow"], true);
    page.click("add");
    assert_eq!(same_picture(&mut page)["limiters"].as_array().unwrap().len(), 2);
    assert_eq!(page.evaluate("limiters[1].key"), "{<address>}:2");
    page.click("limiter1-remove");
    assert_eq!(same_picture(&mut page)["limiters"].as_array().unwrap().len(), 1);
    page.choose("unit", "milliseconds");
    assert_eq!(same_picture(&mut page)["unit"], "MS");
    // The policy as text builds the sliders.
    page.write("policy", "CL.MTAKE a:<user> LOG 5 60 1 b SHADOW FIXED 9 MONTH UTC 60 FROM 15 1");
    let picture = same_picture(&mut page);
    assert_eq!(picture["limiters"][1]["arguments"], json!(["9", "MONTH", "UTC", "60", "FROM", "15", "1"]));
    assert_eq!(page.evaluate("document.querySelectorAll('#cards fieldset').length"), 2);
    // An error is shown, and the picture stays.
    page.write("policy", "a:<nobody> LOG 5 60 1");
    let error = page.evaluate("element('error').textContent");
    assert!(error.as_str().unwrap().contains("<nobody>"), "{error}");
    page.write("policy", "a:<user> LOG 5 60 1");
    assert_eq!(page.evaluate("element('error').hidden"), true);
    for pattern in ["steady: evenly spaced", "bursts: many at once", "a storm: all clients at once"] {
        page.choose("pattern", pattern);
        same_picture(&mut page);
    }
    for retry in ["gives up", "calls again every second", "calls again after retry_after"] {
        page.choose("retry", retry);
        same_picture(&mut page);
    }
    page.click("reset");
    assert_eq!(page.evaluate("JSON.stringify(state) === JSON.stringify(START)"), true);
    // Calls: the buttons, and the picture.
    page.choose("example", "CL.THROTTLE: a burst, then a rate");
    page.click("next");
    assert_eq!(same_picture(&mut page)["call"]["number"], 18);
    page.click("previous");
    assert_eq!(same_picture(&mut page)["call"]["number"], 17);
    page.click("chart");
    assert!(same_picture(&mut page)["call"]["number"].as_u64().unwrap() > 40);
    for button in ["share", "[data-copy=command]", "[data-copy=python]", "[data-copy=rust]"] {
        page.evaluate("element('copied').textContent = ''");
        page.click(button);
        page.until("element('copied').textContent !== ''");
    }
}

#[test]
fn an_address_shows_others_the_same() {
    let mut page = Page::open("");
    page.choose("example", "CL.MTAKE: a second and a minute at once");
    page.write("limiter2-limit", "40");
    page.write("rate", "200");
    page.choose("retry", "calls again every second");
    let picture = same_picture(&mut page);
    let address = page.addressed("location.hash");
    let mut other = Page::open(address.as_str().unwrap());
    assert_eq!(same_picture(&mut other), picture);
    assert_eq!(other.evaluate("element('limiter2-limit').value"), "40");
    assert_eq!(other.evaluate("element('rate').value"), "200");
    assert_eq!(other.evaluate("element('retry').value"), "second");
    // A wrong part of the address is ignored.
    let mut wrong = Page::open("#rate=x&seconds=-5&nothing=1&policy=%3Cscript%3E");
    assert_eq!(wrong.evaluate("state.rate"), 60);
    assert!(wrong.evaluate("element('error').textContent").as_str().unwrap().contains("<script>"));
}

#[test]
fn a_log_is_read_as_the_planner_reads_it() {
    let lines: Vec<String> = (0..200)
        .map(|call| {
            format!(
                "192.0.2.{} - - [22/Nov/2026:21:00:{:02} +0000] \"GET /a/{call} HTTP/1.1\" 200 5",
                call % 3,
                call / 4
            )
        })
        .collect();
    let log = format!("{}\nnonsense\n", lines.join("\n"));
    let mut page = Page::open("#policy=ip:%3Caddress%3E+THROTTLE+4+30+60+1&pattern=log");
    assert!(page.evaluate("element('error').textContent").as_str().unwrap().contains("paste"));
    page.write("log", &log);
    let picture = same_picture(&mut page);
    assert_eq!(picture["calls"], 200);
    assert_eq!(picture["unreadable"][0], 1);
    assert!(page.evaluate("element('error').textContent").as_str().unwrap().contains("nonsense"));
    page.write("policy", "tenant:<path/1> FIXED 50 60 1");
    assert_eq!(same_picture(&mut page)["limiters"][0]["most"], 50);
    assert!(page.addressed("location.hash.length").as_u64().unwrap() < 400, "a long log is in the address");
}

#[test]
fn the_largest_picture_and_nothing_from_elsewhere() {
    let mut page = Page::open("#pattern=random&rate=12000&seconds=600&clients=50&call=90000");
    let picture = same_picture(&mut page);
    assert_eq!(picture["cut"], true);
    assert_eq!(picture["calls"], 100_000);
    for _ in 0..5 {
        page.focus("limiter1-count-range");
        page.key("ArrowRight");
        println!("100,000 calls took, in ms: {}", page.evaluate("took"));
    }
    assert_eq!(page.requests().len(), 1, "{:?}", page.requests());
}

#[test]
fn names_for_screen_readers_and_a_phone_without_scrolling_sideways() {
    let mut page =
        Page::open("#policy=account:%3Cuser%3E:requests+THROTTLE+15+30+60+1+b+LEASE+5+10+%3Ccall%3E");
    let nameless = page.nameless_controls();
    assert!(nameless.is_empty(), "{nameless:?}");
    for dark in [false, true] {
        page.phone(dark);
        page.screenshot(if dark { "phone dark" } else { "phone" });
        let width = page.evaluate("document.documentElement.scrollWidth").as_u64().unwrap();
        assert!(width <= 360, "{width}");
        let longest = "Math.max(...[...document.querySelectorAll('#chart text')].map((text) => text.getBoundingClientRect().right))";
        assert!(page.evaluate(longest).as_f64().unwrap() <= 360.0, "a title is cut off");
    }
}

#[test]
fn the_search_of_the_site_leads_to_the_page() {
    let site = Site::serve();
    for (words, address, heading) in [
        ("CL.THROTTLE", "/docs/commands/cl.throttle.html", "CL.THROTTLE"),
        ("leaky bucket funnel", "/docs/commands/cl.funnel.html", "CL.FUNNEL"),
        ("限流", "/README.zh-CN.html", "redis-cell"),
        ("滑动窗口日志", "/docs/choosing.zh-CN.html", "选择限流器"),
    ] {
        let mut page = Page::at(&format!("{}/overview.html", site.url));
        page.click("mdbook-search-toggle");
        page.until("document.activeElement.id === 'mdbook-searchbar'");
        page.write("mdbook-searchbar", words);
        page.key("ArrowRight"); // the search begins when a key is released
        page.until("document.querySelector('#mdbook-searchresults a')");
        let found =
            page.evaluate("[...document.querySelectorAll('#mdbook-searchresults a')].map((a) => a.href)");
        let wanted = |link: &&Value| link.as_str().is_some_and(|link| link.contains(address));
        let link = found.as_array().unwrap().iter().find(wanted).unwrap_or_else(|| panic!("{found}"));
        page.loaded(|page| {
            page.evaluate(&format!("[...document.links].find((link) => link.href === {link}).click()"));
        });
        assert_eq!(page.evaluate("document.querySelector('main h1').innerText"), heading);
    }
}

#[test]
fn a_search_in_chinese_is_found_again_when_its_page_is_loaded_again() {
    let site = Site::serve();
    let mut page = Page::at(&format!("{}/docs/tutorial.html?search=%E9%99%90%E6%B5%81", site.url));
    for _ in 0..6 {
        page.until("document.querySelector('#mdbook-searchresults a')");
        page.loaded(|page| {
            page.evaluate("location.reload()");
        });
    }
}

#[test]
fn the_front_page_plays_and_leads_to_the_others() {
    let site = Site::serve();
    let mut page = Page::at(&format!("{}/index.html", site.url));
    page.until("typeof program !== 'undefined' && program");
    page.focus("limiter1-count-range");
    page.key("ArrowRight");
    assert_eq!(same_picture(&mut page)["limiters"][0]["arguments"][1], "31");
    let hidden = "['traffic', 'policy', 'add', 'share'].filter((id) => element(id).offsetParent).length";
    assert_eq!(page.evaluate(hidden), 0, "what only the whole playground shows");
    page.phone(false);
    let width = page.evaluate("document.documentElement.scrollWidth").as_u64().unwrap();
    assert!(width <= 360, "{width}");
    let cut_off =
        "(({ scrollWidth, clientWidth }) => scrollWidth - clientWidth)(document.querySelector('.front pre'))";
    assert_eq!(page.evaluate(cut_off), 0, "the example");
    // The whole playground begins with what was chosen here, and shows all.
    page.loaded(|page| page.click("whole"));
    page.until("typeof program !== 'undefined' && program");
    assert_eq!(same_picture(&mut page)["limiters"][0]["arguments"][1], "31");
    assert_eq!(page.evaluate(&hidden.replace(".offsetParent)", ".offsetParent === null)")), 0);
    // The page for unknown addresses has a link to the documentation that works at any address.
    let mut lost = Page::at(&format!("{}/404.html", site.url));
    lost.loaded(|page| page.click("start"));
    assert_eq!(lost.evaluate("document.querySelector('main h1').innerText"), "redis-cell");
}
