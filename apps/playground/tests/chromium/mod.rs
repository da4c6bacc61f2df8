//! A page of the site in Chromium, which is driven through a pipe by the protocol of its developer tools.

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::{env, fs};

use serde_json::{Value, json};
use tempfile::TempDir;

/// A page in a browser of its own, which ends with it.
pub struct Page {
    browser: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
    session: Option<String>,
    calls: u64,
    requests: Vec<String>,
    /// How many pages were loaded.
    loads: u64,
    _profile: TempDir,
}

impl Page {
    /// Opens the playground with this text after the address of its file.
    pub fn open(hash: &str) -> Self {
        let mut page = Self::at(&format!("file://{}{hash}", playground().display()));
        page.until("typeof program !== 'undefined' && program");
        page
    }

    /// Opens the page with this address.
    pub fn at(url: &str) -> Self {
        let profile = tempfile::tempdir().unwrap();
        // The shell gives the pipes the numbers that the browser reads and writes.
        let mut browser = Command::new("sh")
            .args(["-c", "exec \"$@\" 3<&0 4>&1 </dev/null >/dev/null 2>&1", "sh"])
            .arg(variable("REDIS_CELL_BROWSER"))
            .args([
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-dev-shm-usage",
                "--remote-debugging-pipe",
            ])
            .args(["--no-first-run", "--window-size=1400,1600"])
            .arg(format!("--user-data-dir={}", profile.path().display()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (to, from) = (browser.stdin.take().unwrap(), BufReader::new(browser.stdout.take().unwrap()));
        let (session, calls, requests) = (None, 0, Vec::new());
        let mut page = Self { browser, to, from, session, calls, requests, loads: 0, _profile: profile };
        let target = page.send("Target.createTarget", &json!({"url": "about:blank"}))["targetId"].clone();
        let attached = page.send("Target.attachToTarget", &json!({"targetId": target, "flatten": true}));
        page.session = attached["sessionId"].as_str().map(str::to_owned);
        page.send("Network.enable", &json!({}));
        page.send("Page.enable", &json!({}));
        page.loaded(|page| drop(page.send("Page.navigate", &json!({"url": url}))));
        page
    }

    /// A command of the protocol and its result.
    fn send(&mut self, method: &str, params: &Value) -> Value {
        self.calls += 1;
        let mut call = json!({"id": self.calls, "method": method, "params": params});
        if let Some(session) = &self.session {
            call["sessionId"] = json!(session);
        }
        write!(self.to, "{call}\0").unwrap();
        loop {
            let answer = self.receive();
            if answer["id"] == self.calls {
                assert_eq!(answer["error"], Value::Null, "{call}");
                return answer["result"].clone();
            }
        }
    }

    /// The next answer or event.
    fn receive(&mut self) -> Value {
        let mut message = Vec::new();
        self.from.read_until(0, &mut message).unwrap();
        message.pop().expect("the browser has ended");
        let message: Value = serde_json::from_slice(&message).unwrap();
        match message["method"].as_str() {
            Some("Network.requestWillBeSent") => {
                self.requests.push(message["params"]["request"]["url"].as_str().unwrap().to_owned());
            }
            Some("Page.loadEventFired") => self.loads += 1,
            _ => {}
        }
        message
    }

    /// Runs an action that leads to another page, and waits until that page is loaded.
    pub fn loaded(&mut self, lead: impl FnOnce(&mut Self)) {
        let before = self.loads;
        lead(self);
        while self.loads == before {
            self.receive();
        }
    }

    /// The value of an expression, or of its promise.
    pub fn evaluate(&mut self, expression: &str) -> Value {
        let params = json!({"expression": expression, "awaitPromise": true, "returnByValue": true, "userGesture": true});
        let answer = self.send("Runtime.evaluate", &params);
        assert_eq!(answer["exceptionDetails"], Value::Null, "{expression}");
        answer["result"]["value"].clone()
    }

    /// Waits until an expression is true.
    pub fn until(&mut self, condition: &str) {
        self.evaluate(&format!(
            "new Promise((done) => {{ const look = () => ({condition}) ? done() : setTimeout(look, 5); look(); }})"
        ));
    }

    /// The value of an expression as soon as the address of the page matches its content.
    pub fn addressed(&mut self, expression: &str) -> Value {
        self.until("location.hash === address()");
        self.evaluate(expression)
    }

    /// Chooses the option with this text.
    pub fn choose(&mut self, id: &str, option: &str) {
        let option = json!(option);
        self.evaluate(&format!(
            "(() => {{ const it = element('{id}'); it.focus();
               it.selectedIndex = [...it.options].findIndex((option) => option.text.startsWith({option}));
               if (it.selectedIndex < 0) throw new Error('no such option');
               it.dispatchEvent(new Event('change')); }})()"
        ));
    }

    /// Replaces the text of a field, as a user who selects all of it and types.
    pub fn write(&mut self, id: &str, text: &str) {
        self.evaluate(&format!(
            "(document.getElementById('{id}').focus(), document.getElementById('{id}').select())"
        ));
        self.send("Input.insertText", &json!({"text": text}));
    }

    /// Gives a control the keyboard.
    pub fn focus(&mut self, id: &str) {
        self.evaluate(&format!("element('{id}').focus()"));
    }

    /// Presses and releases a key.
    pub fn key(&mut self, key: &str) {
        let code = if key == "ArrowLeft" { 37 } else { 39 };
        for event in ["keyDown", "keyUp"] {
            let params = json!({"type": event, "key": key, "code": key, "windowsVirtualKeyCode": code});
            self.send("Input.dispatchKeyEvent", &params);
        }
    }

    /// Clicks in the middle of an element, which is named by its id or by a selector.
    pub fn click(&mut self, element: &str) {
        let selector = if element.starts_with('[') { element.to_owned() } else { format!("#{element}") };
        let place = self.evaluate(&format!(
            "(() => {{ const it = document.querySelector('{selector}'); it.scrollIntoView({{block: 'center'}});
               const box = it.getBoundingClientRect(); return [box.x + box.width / 2, box.y + box.height / 2]; }})()"
        ));
        for event in ["mousePressed", "mouseReleased"] {
            let params =
                json!({"type": event, "x": place[0], "y": place[1], "button": "left", "clickCount": 1});
            self.send("Input.dispatchMouseEvent", &params);
        }
    }

    /// A screen of 360 points, in the light or in the dark.
    pub fn phone(&mut self, dark: bool) {
        let screen = json!({"width": 360, "height": 740, "deviceScaleFactor": 1, "mobile": true});
        self.send("Emulation.setDeviceMetricsOverride", &screen);
        let scheme = if dark { "dark" } else { "light" };
        let features = json!({"features": [{"name": "prefers-color-scheme", "value": scheme}]});
        self.send("Emulation.setEmulatedMedia", &features);
    }

    /// Controls that have no name for a screen reader.
    pub fn nameless_controls(&mut self) -> Vec<Value> {
        let tree = self.send("Accessibility.getFullAXTree", &json!({}));
        let nodes = tree["nodes"].as_array().unwrap();
        let roles = ["button", "checkbox", "combobox", "slider", "textbox", "image", "img"];
        let controls = nodes.iter().filter(|node| roles.iter().any(|role| node["role"]["value"] == *role));
        let controls: Vec<_> = controls.filter(|node| node["ignored"] != true).collect();
        assert!(controls.len() > 20, "{tree}");
        controls
            .into_iter()
            .filter(|node| node["name"]["value"].as_str().is_none_or(str::is_empty))
            .cloned()
            .collect()
    }

    /// The addresses that the page has requested.
    pub fn requests(&self) -> &[String] {
        &self.requests
    }

    /// Keeps a picture of the page for inspection, if `REDIS_CELL_SCREENSHOTS` names a folder.
    pub fn screenshot(&mut self, name: &str) {
        let Ok(folder) = env::var("REDIS_CELL_SCREENSHOTS") else { return };
        let name: String =
            name.chars().map(|letter| if letter.is_alphanumeric() { letter } else { '-' }).collect();
        let picture = self.send("Page.captureScreenshot", &json!({"captureBeyondViewport": true}));
        fs::write(format!("{folder}/{name}.png.base64"), picture["data"].as_str().unwrap()).unwrap();
    }
}

fn variable(name: &str) -> String {
    env::var(name).unwrap_or_else(|_| panic!("{name} is not set: use `make test-apps`"))
}

/// The file of the playground, which is on the site.
fn playground() -> PathBuf {
    fs::canonicalize(variable("REDIS_CELL_PLAYGROUND")).unwrap()
}

/// The site on a port of this machine: the search, unlike the playground, changes the address as it finds
/// results.
pub struct Site {
    server: Child,
    pub url: String,
}

impl Site {
    pub fn serve() -> Self {
        let file = playground();
        let folder = file.ancestors().nth(3).unwrap();
        let mut server = Command::new("python3")
            .args(["-u", "-m", "http.server", "--bind", "127.0.0.1", "--directory"])
            .arg(folder)
            .arg("0")
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(server.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        let port: u16 = line.split(' ').skip_while(|word| *word != "port").nth(1).unwrap().parse().unwrap();
        Self { server, url: format!("http://127.0.0.1:{port}") }
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        let _ = self.browser.kill();
        let _ = self.browser.wait();
    }
}
