//! A headless browser, controlled through two pipes by Chrome's DevTools protocol.
//!
//! Any Chromium works. Without one, tests are reported as ignored, unless `WALDEN_BROWSER` names a browser,
//! which must then exist.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;
use walden_testing::{Missing, Need};

/// Longer than any response takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A browser with one page.
pub struct Browser {
    process: Child,
    to: File,
    from: Receiver<Value>,
    session: Option<String>,
    asked: u64,
    events: VecDeque<Value>,
    /// Contains the profile and the pipes.
    _folder: TempDir,
}

/// Position and size of an element, for clicks.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    pub x: f64,
    pub y: f64,
    pub width: f64,
    pub height: f64,
}

impl Browser {
    /// Starts a browser, if one is installed.
    pub fn start() -> Result<Browser, Missing> {
        let program = Need::Browser.find()?;
        let folder = tempfile::tempdir().unwrap();
        let (to, from) = (folder.path().join("to"), folder.path().join("from"));
        let made = Command::new("mkfifo").args([&to, &from]).status().unwrap();
        assert!(made.success());
        // Opened for reading and writing, so that neither side blocks.
        let open = |path: &Path| OpenOptions::new().read(true).write(true).open(path).unwrap();
        let (to_browser, from_browser) = (open(&to), open(&from));
        let mut command = Command::new("sh");
        command
            .args(["-c", "to=$1 from=$2; shift 2; exec \"$0\" \"$@\" 3<\"$to\" 4>\"$from\""])
            .arg(&program)
            .args([&to, &from])
            .args(["--headless", "--disable-gpu", "--no-first-run", "--remote-debugging-pipe"])
            .arg(format!("--user-data-dir={}", folder.path().join("profile").display()));
        if rustix::process::geteuid().is_root() {
            // The browser's sandbox does not work for root.
            command.arg("--no-sandbox");
        }
        let process = command.arg("about:blank").stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let (sender, receiver) = channel();
        std::thread::spawn(move || {
            for message in BufReader::new(from_browser).split(0) {
                let Ok(message) = message else { return };
                let value = serde_json::from_slice(&message).unwrap();
                if sender.send(value).is_err() {
                    return;
                }
            }
        });
        let mut browser = Browser {
            process,
            to: to_browser,
            from: receiver,
            session: None,
            asked: 0,
            events: VecDeque::new(),
            _folder: folder,
        };
        let target = browser.call("Target.createTarget", json!({"url": "about:blank"}));
        let attached =
            browser.call("Target.attachToTarget", json!({"targetId": target["targetId"], "flatten": true}));
        browser.session = Some(attached["sessionId"].as_str().unwrap().to_owned());
        for domain in ["Runtime", "Log", "Page", "Network"] {
            browser.call(&format!("{domain}.enable"), json!({}));
        }
        Ok(browser)
    }

    /// Calls a method of the protocol.
    pub fn call(&mut self, method: &str, parameters: Value) -> Value {
        self.asked += 1;
        let mut message = json!({"id": self.asked, "method": method, "params": parameters});
        if let Some(session) = &self.session {
            message["sessionId"] = json!(session);
        }
        let mut text = message.to_string().into_bytes();
        text.push(0);
        self.to.write_all(&text).unwrap();
        loop {
            let answer = self
                .from
                .recv_timeout(PATIENCE)
                .unwrap_or_else(|_| panic!("the browser does not answer {method}: {:?}", self.process));
            if answer["id"] == self.asked {
                assert!(answer["error"].is_null(), "{method}: {}", answer["error"]);
                return answer["result"].clone();
            }
            self.events.push_back(answer);
        }
    }

    /// Returns the value of an expression in the page, and awaits promises.
    pub fn evaluate(&mut self, expression: &str) -> Value {
        let parameters = json!({"expression": expression, "returnByValue": true, "awaitPromise": true, "userGesture": true});
        let answer = self.call("Runtime.evaluate", parameters);
        assert!(answer["exceptionDetails"].is_null(), "{expression}: {}", answer["exceptionDetails"]);
        answer["result"]["value"].clone()
    }

    /// Waits until an expression is true.
    pub fn wait_for(&mut self, expression: &str) {
        let started = Instant::now();
        while self.evaluate(expression) != Value::Bool(true) {
            assert!(started.elapsed() < PATIENCE, "never true: {expression}; {:?}", self.console_messages());
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Opens a file, and waits until its script has finished.
    pub fn open(&mut self, page: &Path) {
        self.events.clear();
        let url = format!("file://{}", page.display());
        self.call("Page.navigate", json!({"url": url}));
        self.wait_for("document.readyState === 'complete' && document.body?.dataset.rendered !== undefined");
    }

    /// Sets the size of the window, and the preferred color scheme.
    pub fn look(&mut self, width: u32, height: u32, dark: bool) {
        let metrics =
            json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600});
        self.call("Emulation.setDeviceMetricsOverride", metrics);
        let scheme = if dark { "dark" } else { "light" };
        let features = json!({"features": [{"name": "prefers-color-scheme", "value": scheme}]});
        self.call("Emulation.setEmulatedMedia", features);
    }

    /// Scrolls an element into view, and returns its position in the window.
    pub fn place(&mut self, element: &str) -> Place {
        let value = self.evaluate(&format!(
            "(() => {{ const found = {element}; found.scrollIntoView({{block: 'center', behavior: 'instant'}});
               const {{x, y, width, height}} = found.getBoundingClientRect(); return {{x, y, width, height}}; }})()"
        ));
        let number = |name: &str| value[name].as_f64().unwrap_or_else(|| panic!("{element}: {value}"));
        Place { x: number("x"), y: number("y"), width: number("width"), height: number("height") }
    }

    /// Moves the mouse to a position in the window.
    pub fn point(&mut self, x: f64, y: f64) {
        self.call("Input.dispatchMouseEvent", json!({"type": "mouseMoved", "x": x, "y": y}));
    }

    /// Clicks an element with the mouse.
    pub fn click(&mut self, element: &str) {
        let place = self.place(element);
        let (x, y) = (place.x + place.width / 2.0, place.y + place.height / 2.0);
        self.point(x, y);
        for kind in ["mousePressed", "mouseReleased"] {
            let event = json!({"type": kind, "x": x, "y": y, "button": "left", "clickCount": 1});
            self.call("Input.dispatchMouseEvent", event);
        }
    }

    /// Returns console messages, dialogs, and requests other than for the page's own file.
    pub fn console_messages(&mut self) -> Vec<String> {
        // The browser's pending messages arrive before the response.
        self.call("Runtime.evaluate", json!({"expression": "0"}));
        let message = |event: &Value| {
            let parameters = &event["params"];
            match event["method"].as_str().unwrap_or_default() {
                "Runtime.consoleAPICalled"
                | "Runtime.exceptionThrown"
                | "Log.entryAdded"
                | "Page.javascriptDialogOpening" => Some(event.to_string()),
                "Network.requestWillBeSent" => {
                    let (url, document) = (&parameters["request"]["url"], &parameters["documentURL"]);
                    let own = url == document && url.as_str().is_some_and(|url| url.starts_with("file:"));
                    (!own).then(|| format!("request of {url}"))
                }
                _ => None,
            }
        };
        self.events.iter().filter_map(message).collect()
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // If asked to close, the browser ends its child processes, too.
        let message = json!({"id": u32::MAX, "method": "Browser.close"}).to_string() + "\0";
        let _ = self.to.write_all(message.as_bytes());
        let started = Instant::now();
        while started.elapsed() < Duration::from_secs(10) {
            if !matches!(self.process.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
