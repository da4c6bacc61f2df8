//! Random calls: arguments that are usual, extreme or wrong, and states that are none of the limiter's.

use fastrand::Rng;

/// Words that no argument accepts, and words that some do.
const BAD: [&[u8]; 18] = [
    b"",
    b"abc",
    b"-1",
    b"01",
    b"+1",
    b" 1",
    b"1 ",
    b"1.0",
    b"1e3",
    b"0x10",
    b"-0",
    b"--1",
    b"1\0",
    b"\xff",
    b"9223372036854775807",
    b"9223372036854775808",
    b"-9223372036854775808",
    b"18446744073709551616",
];

const OPTIONS: [&str; 9] = ["SATURATE", "S", "MS", "US", "UTC", "FROM", "BOGUS", "0", "UNTIL"];

/// The largest number of each unit that 292 years hold, as the module states it in its errors.
const MOST: [(&str, i64); 3] =
    [("S", 9_223_372_036), ("MS", 9_223_372_036_854), ("US", 9_223_372_036_854_775)];

pub struct Calls {
    rng: Rng,
    /// Limits that are in use, so that states meet the limit that they were made under.
    rates: Vec<[String; 4]>,
    windows: Vec<Vec<String>>,
}

impl Calls {
    pub fn new(seed: u64) -> Self {
        let mut this = Self { rng: Rng::with_seed(seed), rates: Vec::new(), windows: Vec::new() };
        for _ in 0..40 {
            let rate = this.rate();
            this.rates.push(rate);
            this.windows.push(Vec::new());
        }
        this
    }

    pub fn rng(&mut self) -> &mut Rng {
        &mut self.rng
    }

    fn one_in(&mut self, of: u32) -> bool {
        self.rng.u32(0..of) == 0
    }

    /// A number of any length up to a limit.
    fn any_length(&mut self, most: i64) -> i64 {
        let bits = self.rng.u32(0..63);
        (self.rng.i64(0..=i64::MAX) >> bits).min(most)
    }

    /// `max_burst count period`, and the unit.
    fn rate(&mut self) -> [String; 4] {
        let rng = &mut self.rng;
        let (max_burst, count, period, unit) = match rng.u32(0..8) {
            0..=1 => (rng.i64(0..20), rng.i64(1..50), rng.i64(1..120), 0),
            2 => (rng.i64(0..200), rng.i64(1..1000), rng.i64(1..5000), 1),
            3 => (rng.i64(0..2000), rng.i64(1..1000), rng.i64(1..1000), 2),
            4 => (rng.i64(0..30_000_000), rng.i64(1..=1_000_000_000), 1, 0),
            5 => (rng.i64(0..1000), rng.i64(1..10), rng.i64(1..100_000_000), 0),
            6 => (rng.i64(0..1000), rng.i64(1..1000), rng.i64(80_000..90_000), 0),
            _ => {
                let unit = rng.usize(0..3);
                let period = self.any_length(MOST[unit].1).max(1);
                (self.any_length(i64::MAX), self.any_length(i64::MAX), period, unit)
            }
        };
        [max_burst.to_string(), count.to_string(), period.to_string(), MOST[unit].0.to_owned()]
    }

    /// A quantity for a limit of `max_burst + 1`.
    fn quantity(&mut self, max_burst: &str) -> String {
        let limit = max_burst.parse::<i64>().unwrap_or(0).saturating_add(1);
        match self.rng.u32(0..12) {
            0..=3 => self.rng.i64(1..4),
            4..=5 => 0,
            6..=8 => limit.saturating_add(self.rng.i64(-2..=2)).max(0),
            9 => self.rng.i64(0..=limit),
            10 => limit / 3,
            _ => self.any_length(i64::MAX),
        }
        .to_string()
    }

    /// A call of a command on the string of GCRA or of a fixed window; `i` is the number of its key.
    pub fn call(&mut self, i: usize, wall: i64) -> Vec<Vec<u8>> {
        let words = if i.is_multiple_of(2) { self.gcra(i) } else { self.fixed(i, wall) };
        let mut words: Vec<Vec<u8>> = words.into_iter().map(String::into_bytes).collect();
        if self.one_in(12) {
            self.damage(&mut words);
        }
        words
    }

    fn gcra(&mut self, i: usize) -> Vec<String> {
        if self.one_in(100) {
            self.rates[i] = self.rate();
        }
        let other = if self.one_in(20) { self.rng.usize(0..self.rates.len()) } else { i };
        let [max_burst, count, period, unit] = self.rates[other].clone();
        let command = ["THROTTLE", "THROTTLE", "THROTTLE", "PEEK", "REFUND", "CHARGE"][self.rng.usize(0..6)];
        let key = i.to_string();
        let quantity = self.quantity(&max_burst);
        let mut words = vec![format!("CL.{command}"), key, max_burst, count, period];
        if !self.one_in(3) {
            words.push(quantity);
        }
        let saturate = command == "THROTTLE" && self.one_in(3);
        self.options(&mut words, saturate.then_some(vec!["SATURATE".to_owned()]), unit);
        words
    }

    fn fixed(&mut self, i: usize, wall: i64) -> Vec<String> {
        if self.windows[i].is_empty() || self.one_in(50) {
            self.windows[i] = self.window(wall);
        }
        let words = self.windows[i].clone();
        let (limit, unit, window) = (&words[0], &words[1], &words[2..]);
        let mut words = vec!["CL.FIXED".to_owned(), i.to_string(), limit.clone()];
        let positional = if window[0].eq_ignore_ascii_case("UNTIL") { 2 } else { 1 };
        words.extend(window[..positional].iter().cloned());
        if !self.one_in(3) {
            words.push(self.quantity(&limit.parse::<i64>().map_or(String::new(), |n| (n - 1).to_string())));
        }
        let mut options: Vec<Vec<String>> = window[positional..].chunks(2).map(<[String]>::to_vec).collect();
        if self.one_in(3) {
            options.push(vec!["SATURATE".to_owned()]);
        }
        self.rng.shuffle(&mut options);
        self.options(&mut words, options, unit.clone());
        words
    }

    /// A limit, a unit, and a window with the options that it has.
    fn window(&mut self, wall: i64) -> Vec<String> {
        let limit = if self.one_in(6) { self.any_length(i64::MAX) } else { self.rng.i64(1..30) };
        let unit = self.rng.usize(0..3);
        let (name, most) = MOST[unit];
        let per_second = [1, 1_000, 1_000_000][unit];
        let mut words = vec![limit.to_string(), name.to_owned()];
        let random_case = |rng: &mut Rng, word: &str| {
            if rng.bool() { word.to_owned() } else { word.to_lowercase() }
        };
        match self.rng.u32(0..10) {
            0..=3 => words.push(self.rng.i64(1..=per_second * 100).to_string()),
            4 => words.push(self.any_length(most).to_string()),
            5 => {
                let ahead = self.any_length(10_000_000_000_000_000) - 1000;
                words.push(random_case(&mut self.rng, "UNTIL"));
                words.push((wall.saturating_add(ahead) / (1_000_000_000 / per_second)).max(0).to_string());
            }
            6 if self.one_in(3) => {
                words.push("UNTIL".to_owned());
                words.push(self.any_length(most).to_string());
            }
            _ => {
                let cycle = ["HOUR", "DAY", "WEEK", "MONTH", "MONTH", "YEAR"][self.rng.usize(0..6)];
                words.push(random_case(&mut self.rng, cycle));
                if self.rng.bool() {
                    words.extend(["UTC".to_owned(), self.rng.i64(-850..=850).to_string()]);
                }
                if cycle == "WEEK" && self.rng.bool() {
                    words.extend(["FROM".to_owned(), self.rng.i64(1..=8).to_string()]);
                }
                if cycle == "MONTH" && self.rng.bool() {
                    words.extend(["FROM".to_owned(), self.rng.i64(1..=32).to_string()]);
                }
            }
        }
        words
    }

    /// Appends options and a unit, in any order and case.
    fn options(
        &mut self,
        words: &mut Vec<String>,
        options: impl IntoIterator<Item = Vec<String>>,
        unit: String,
    ) {
        let mut options: Vec<Vec<String>> = options.into_iter().collect();
        if unit != "S" || self.rng.bool() {
            options.push(vec![unit]);
        }
        self.rng.shuffle(&mut options);
        for mut option in options {
            if self.rng.bool() {
                option[0] = option[0].to_lowercase();
            }
            words.extend(option);
        }
    }

    /// Replaces, removes or inserts a word behind the key.
    fn damage(&mut self, words: &mut Vec<Vec<u8>>) {
        let i = self.rng.usize(2..=words.len());
        let word = match self.rng.u32(0..3) {
            0 => OPTIONS[self.rng.usize(0..OPTIONS.len())].as_bytes(),
            _ => BAD[self.rng.usize(0..BAD.len())],
        };
        match self.rng.u32(0..3) {
            0 if i < words.len() => drop(words.remove(i)),
            1 if i < words.len() => words[i] = word.to_vec(),
            _ => words.insert(i, word.to_vec()),
        }
    }

    /// Something that another program does to the key, as the command without the key.
    pub fn interference(&mut self, wall: i64) -> Vec<String> {
        const YEAR: i64 = 365 * 86_400 * 1_000_000_000;
        const DAY: i64 = 86_400 * 1_000_000_000;
        let near = self.rng.i64(-1_000_001..=1_000_001);
        let by = [-1, 0, 1, near][self.rng.usize(0..4)];
        let year = wall.saturating_add([YEAR, -YEAR][self.rng.usize(0..2)]).saturating_add(by).max(0);
        let soon = wall / 1_000_000 + self.rng.i64(1..100_000);
        let at = |millis: i64| ["PXAT".to_owned(), millis.max(1).to_string()];
        let any = self.any_length(i64::MAX);
        let set = |value: &str| vec!["SET".to_owned(), value.to_owned()];
        match self.rng.u32(0..18) {
            0 | 12..=17 => vec!["DEL".to_owned()],
            1 => vec!["PERSIST".to_owned()],
            2 => vec!["LPUSH".to_owned(), "x".to_owned()],
            3 => set(["", "hello", "-5", "007", "1.5", "9223372036854775808"][self.rng.usize(0..6)]),
            4 => set(&year.to_string()),
            // Far from the clock, and a day from the expiry.
            5 => {
                let expiry = wall.saturating_add(YEAR + 2 * DAY) / 1_000_000;
                let tat = expiry.saturating_mul(1_000_000).saturating_add([DAY, -DAY][self.rng.usize(0..2)]);
                [set(&tat.saturating_add(by).to_string()), at(expiry).to_vec()].concat()
            }
            // A count within a minute of the expiry.
            6 => {
                let minute = [60_000_000_000, -60_000_000_000][self.rng.usize(0..2)];
                let count = (soon * 1_000_000).saturating_add(minute).saturating_add(by).max(0);
                [set(&count.to_string()), at(soon).to_vec()].concat()
            }
            7 => [set(&any.to_string()), at(soon).to_vec()].concat(),
            8 => [set(&self.rng.i64(0..40).to_string()), at(soon).to_vec()].concat(),
            9 => vec!["PEXPIREAT".to_owned(), soon.to_string()],
            // Later than any state.
            10 => [set(&any.to_string()), at(9_223_372_036_854 + self.rng.i64(-1..1000)).to_vec()].concat(),
            _ => set(&wall.saturating_add(self.rng.i64(0..1 << 55)).to_string()),
        }
    }

    /// How far the clock moves on, in nanoseconds: whole microseconds, the resolution of the functions'.
    pub fn pause(&mut self) -> i64 {
        let rng = &mut self.rng;
        let micros = match rng.u32(0..100) {
            0..=49 => 0,
            50..=64 => rng.i64(0..10),
            65..=79 => rng.i64(0..5_000),
            80..=94 => rng.i64(0..5_000_000),
            95..=98 => rng.i64(0..4_000_000_000),
            _ => rng.i64(0..2_000_000_000_000),
        };
        micros * 1000
    }
}
