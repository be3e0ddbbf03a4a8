//! Models that are chosen on the page of a running server: downloaded from a hub on this machine,
//! loaded in place of another one, and removed.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::Duration;

use moeflux_testing::hub::{Access, HostedContents, HubFault, HubFile};
use serde_json::{Value, json};

use super::pulling::{COMMIT, ID, LOOK_EVERY, PATIENCE, PullFixture};
use crate::support::ModelDir;

/// A server, and the token of its start.
struct ChoosingServer {
    child: Child,
    address: String,
    start: String,
}

impl ChoosingServer {
    fn start(fixture: &PullFixture, args: &[&str]) -> Self {
        let mut command = fixture.command(&["serve", "--port", "0", "--sessions", "1"]);
        let mut child = command.args(args).stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let address = loop {
            let line = lines.next().expect("it serves").unwrap();
            if let Some((_, rest)) = line.split_once(" at http://") {
                break rest.split_whitespace().next().unwrap().to_owned();
            }
        };
        // The pipe must not fill up.
        let reader = std::thread::Builder::new().name("serve-stderr".to_owned());
        reader.spawn(move || lines.for_each(drop)).unwrap();
        let mut server = Self { child, address, start: String::new() };
        let (_, page) = server.send("GET / HTTP/1.1\r\naccept: text/html", "");
        let (_, rest) = page.split_once("moeflux-start\" content=\"").unwrap();
        rest.split('"').next().unwrap().clone_into(&mut server.start);
        server
    }

    fn send(&self, head: &str, body: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        let (address, start, n_bytes) = (&self.address, &self.start, body.len());
        let request = format!(
            "{head}\r\nhost: {address}\r\nconnection: close\r\nx-moeflux-start: {start}\r\n\
             content-type: application/json\r\ncontent-length: {n_bytes}\r\n\r\n{body}"
        );
        stream.write_all(request.as_bytes()).unwrap();
        let mut response = String::new();
        stream.read_to_string(&mut response).unwrap();
        let status = response.split(' ').nth(1).unwrap().parse().unwrap();
        (status, response.split_once("\r\n\r\n").unwrap().1.to_owned())
    }

    fn json(found: &str) -> Value {
        let object = found.lines().find(|line| line.starts_with('{'));
        serde_json::from_str(object.expect(found)).unwrap()
    }

    fn get(&self, path: &str) -> Value {
        Self::json(&self.send(&format!("GET {path} HTTP/1.1"), "").1)
    }

    fn post(&self, path: &str, body: &Value) -> (u16, Value) {
        let (status, found) = self.send(&format!("POST {path} HTTP/1.1"), &body.to_string());
        (status, Self::json(&found))
    }

    /// The model with this place in the list.
    fn listed(&self, name: &str) -> Option<Value> {
        let models = self.get("/moeflux/models")["models"].take();
        models.as_array().unwrap().iter().find(|it| it["name"] == name).cloned()
    }

    /// Starts a task.
    fn begin(&self, path: &str, body: &Value) {
        let (status, found) = self.post(path, body);
        assert_eq!(status, 202, "{path}: {found}");
    }

    /// Waits until the task meets a condition.
    #[track_caller]
    fn wait(&self, what: &str, is_so: impl Fn(&Value) -> bool) -> Value {
        let mut n_looks_left = PATIENCE.as_millis() / LOOK_EVERY.as_millis();
        loop {
            let task = self.get("/moeflux/task")["task"].take();
            if is_so(&task) {
                return task;
            }
            n_looks_left = n_looks_left.checked_sub(1).expect(what);
            std::thread::park_timeout(LOOK_EVERY);
        }
    }

    #[track_caller]
    fn ended(&self, state: &str) -> Value {
        let task = self.wait("the end", |task| task["state"] != "running");
        assert_eq!(task["state"], state, "{task}");
        task
    }

    #[track_caller]
    fn load(&self, id: &Value, state: &str) -> Value {
        self.begin("/moeflux/load", &json!({"model": id}));
        self.ended(state)
    }

    /// The name of the model that answers, and its answer.
    fn answer(&self) -> (String, String) {
        let body = json!({"prompt": "A slice", "max_tokens": 4, "temperature": 0});
        let (status, found) = self.post("/v1/completions", &body);
        assert_eq!(status, 200, "{found}");
        let text = found["choices"][0]["text"].as_str().unwrap().to_owned();
        (found["model"].as_str().unwrap().to_owned(), text)
    }
}

impl Drop for ChoosingServer {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

#[test]
fn a_model_is_offered_pulled_loaded_and_removed() {
    let fixture = PullFixture::with_model();
    let server = ChoosingServer::start(&fixture, &[]);
    let listed = server.get("/moeflux/models");
    assert_eq!(listed["manage"]["allowed"], true);
    let models = listed["models"].as_array().unwrap();
    let demo = models.iter().find(|it| it["id"] == listed["current"]).unwrap().clone();
    assert_eq!((&demo["place"], &demo["can"]), (&json!("here"), &json!([])));
    assert!(models.iter().any(|it| it["name"] == "Qwen3-30B-A3B" && it["place"] == "hub"));
    let before = server.answer();

    let (status, offer) = server.post("/moeflux/offer", &json!({"model": ID}));
    assert_eq!((status, &offer["problem"]), (200, &Value::Null), "{offer}");
    let missing = offer["missing_bytes"].clone();
    assert_eq!(offer["bytes"], missing);
    // A client agrees to a size.
    let (status, refused) = server.post("/moeflux/pull", &json!({"model": ID, "bytes": 1}));
    assert_eq!((status, &refused["error"]["code"]), (409, &json!("changed")));
    server.begin("/moeflux/pull", &json!({"model": ID, "bytes": missing}));
    let pulled = server.ended("done");
    assert_eq!((&pulled["phase"], &pulled["kind"]), (&json!("downloading"), &json!("pull")));
    let here = server.listed(ID).unwrap();
    assert_eq!((&here["place"], &here["can"]), (&json!("here"), &json!(["load", "remove"])));

    let loaded = server.load(&here["id"], "done");
    assert_eq!(loaded["message"], format!("{ID} is loaded"));
    assert_eq!(server.answer().0, ID);
    assert_eq!(server.get("/v1/models")["data"][0]["id"], ID);
    assert_eq!(server.get("/props")["model"], ID);
    // What answers is not removed, and is not loaded twice.
    for path in ["/moeflux/remove", "/moeflux/load"] {
        assert_eq!(server.post(path, &json!({"model": here["id"]})).0, 400, "{path}");
    }
    server.load(&demo["id"], "done");
    assert_eq!(server.answer(), before);
    server.begin("/moeflux/remove", &json!({"model": here["id"]}));
    server.ended("done");
    assert!(server.listed(ID).is_none() && !fixture.dir().exists());
    for id in [ID, "nobody/nothing", "../../etc", "/etc/passwd", "http://a/b"] {
        let (status, refused) = server.post("/moeflux/load", &json!({"model": id}));
        assert_eq!((status, &refused["error"]["code"]), (404, &json!("unknown_model")), "{id}");
    }
}

#[test]
fn a_download_is_cancelled_and_continues() {
    let fixture = PullFixture::with_model();
    let server = ChoosingServer::start(&fixture, &[]);
    fixture.server.faults(|_, _| HubFault::Slow(1 << 10, Duration::from_millis(50)));
    let offer = || server.post("/moeflux/offer", &json!({"model": ID})).1;
    let pull = |bytes: &Value| server.begin("/moeflux/pull", &json!({"model": ID, "bytes": bytes}));
    pull(&offer()["missing_bytes"]);
    server.wait("bytes", |task| task["done_bytes"].as_u64().is_some_and(|it| it > 0));
    // One task at a time.
    let (status, busy) = server.post("/moeflux/load", &json!({"model": "x"}));
    assert!(status == 404 || busy["error"]["code"] == "busy", "{busy}");
    assert_eq!(server.post("/moeflux/cancel", &json!({})).0, 202);
    let cancelled = server.ended("cancelled");
    assert!(cancelled["message"].as_str().unwrap().contains("is kept"), "{cancelled}");
    let (status, idle) = server.post("/moeflux/cancel", &json!({}));
    assert_eq!((status, &idle["error"]["code"]), (409, &json!("idle")));
    let partial = server.listed(ID).unwrap();
    assert_eq!(
        (&partial["place"], &partial["can"]),
        (&json!("partial"), &json!(["pull", "remove"]))
    );
    fixture.server.faults(|_, _| HubFault::Nothing);
    pull(&offer()["missing_bytes"]);
    server.ended("done");
    assert_eq!(server.listed(ID).unwrap()["place"], "here");
    server.answer();
}

/// Changes a byte in the middle of a pack's weights that stay in memory: headers do not tell.
fn damage(pack: &Path) {
    let path = pack.join("resident-00001.safetensors");
    let mut bytes = fs::read(&path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&path, bytes).unwrap();
}

#[test]
fn a_model_that_cannot_be_loaded_leaves_the_other_one() {
    let fixture = PullFixture::new(&[]);
    let (made, models) = (ModelDir::synthetic(), fixture.home.file("models"));
    for name in ["good", "damaged", "cut"] {
        let (from, to) = (made.file("model"), models.join(name));
        fixture.stdout(&["pack", from.to_str().unwrap(), to.to_str().unwrap()]);
    }
    damage(&models.join("damaged"));
    let models_arg = models.to_str().unwrap();
    let wrong = ["serve", "--port", "0", "--models", "nowhere"];
    fixture.check_fails(2, &wrong, &["--models nowhere: there is no such folder"]);
    let server = ChoosingServer::start(&fixture, &["--models", models_arg, "--drain", "5s"]);
    let before = server.answer();
    let id = |name: &str| server.listed(name).unwrap()["id"].clone();
    let (good, damaged, cut) = (id("good"), id("damaged"), id("cut"));
    assert_eq!(server.listed("good").unwrap()["can"], json!(["load"]), "folders are not removed");
    // One is damaged where only its weights tell: the old model was freed, and comes back.
    let failed = server.load(&damaged, "failed");
    assert_eq!(failed["phase"], "restoring", "{failed}");
    let message = failed["message"].as_str().unwrap();
    assert!(message.contains("checksum") && !message.contains("again"), "{message}");
    assert_eq!(server.answer(), before);
    let metrics = server.send("GET /metrics HTTP/1.1", "").1;
    let unloads = metrics.lines().find(|it| it.starts_with("moeflux:model_unloads_total{"));
    assert!(unloads.is_some_and(|it| it.ends_with(" 1")), "it was freed: {unloads:?}");
    assert!(!message.contains(models_arg), "no paths: {message}");
    // One is incomplete since it was listed.
    fs::write(models.join("cut/config.json"), b"{").unwrap();
    let (status, refused) = server.post("/moeflux/load", &json!({"model": cut}));
    let task = server.get("/moeflux/task");
    assert!(
        status == 400 || status == 202 && server.ended("failed")["phase"] == "opening",
        "{refused} {task}"
    );
    assert_eq!(server.answer(), before);
    server.load(&good, "done");
    assert_eq!(server.answer().0, "good");
    assert_eq!(server.get("/health")["status"], "ok");
}

#[test]
fn answers_end_before_their_model_does_and_waiting_can_be_cancelled() {
    let fixture = PullFixture::new(&[]);
    let (made, models) = (ModelDir::synthetic(), fixture.home.file("models"));
    let (from, to) = (made.file("model"), models.join("good"));
    fixture.stdout(&["pack", from.to_str().unwrap(), to.to_str().unwrap()]);
    let args = ["--models", models.to_str().unwrap(), "--drain", "60s", "--context", "4096"];
    let server = ChoosingServer::start(&fixture, &args);
    let good = server.listed("good").unwrap()["id"].clone();
    // What a client does not read waits for it, and log-probabilities are more than sockets hold.
    let body = json!({"prompt": "A slice", "max_tokens": 4_000, "stream": true, "logprobs": 20,
        "logit_bias": {"0": -1000, "1": -1000, "2": -1000}});
    let address = server.address.clone();
    let body = body.to_string();
    let mut stream = TcpStream::connect(&address).unwrap();
    let head = format!(
        "POST /v1/completions HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(head.as_bytes()).unwrap();
    let mut some = [0; 2_000];
    stream.read_exact(&mut some).unwrap();
    server.begin("/moeflux/load", &json!({"model": good}));
    let draining = server.wait("draining", |task| task["phase"] == "draining");
    assert_eq!(draining["n_answers"], json!(1), "{draining}");
    stream.read_exact(&mut some).unwrap();
    assert_eq!(server.post("/moeflux/cancel", &json!({})).0, 202);
    let cancelled = server.ended("cancelled");
    assert_eq!(cancelled["message"], "good was not loaded");
    // The answer goes on, and ends for its client only when that leaves.
    stream.read_exact(&mut some).unwrap();
    server.begin("/moeflux/load", &json!({"model": good}));
    server.wait("draining", |task| task["phase"] == "draining");
    drop(stream);
    server.ended("done");
    assert_eq!(server.answer().0, "good");
}

#[test]
fn kinds_of_gguf_files_are_models_of_their_own() {
    let made = ModelDir::synthetic_gguf();
    let gguf = fs::read(made.file("model/model.gguf")).unwrap();
    let file = |name: &str| HubFile::new(name, HostedContents::new(&gguf));
    let fixture = PullFixture::new(&[file("x-Q4_K_M.gguf"), file("x-Q8_0.gguf")]);
    fixture.server.put("owner/private", Access::Private("hf_secret"), COMMIT, &[file("a.gguf")]);
    let server = ChoosingServer::start(&fixture, &[]);
    let offer = |id: &str| server.post("/moeflux/offer", &json!({"model": id}));
    let problem = offer(ID).1["problem"].take();
    assert!(problem.as_str().unwrap().contains("name the kind"), "{problem}");
    let (status, missing) = offer("owner/other");
    assert_eq!(status, 400, "{missing}");
    let (status, private) = offer("owner/private");
    assert_eq!(status, 400, "{private}");
    let id = format!("{ID}:Q8_0");
    let bytes = offer(&id).1["missing_bytes"].take();
    server.begin("/moeflux/pull", &json!({"model": id, "bytes": bytes}));
    server.ended("done");
    server.load(&json!(id), "done");
    assert_eq!(server.answer().0, "x-Q8_0");
    // The other kind, in other letters.
    let id = format!("{ID}:q4_k_m");
    let bytes = offer(&id).1["missing_bytes"].take();
    server.begin("/moeflux/pull", &json!({"model": id, "bytes": bytes}));
    server.ended("done");
    server.load(&json!(id), "done");
    assert_eq!(server.answer().0, "x-Q4_K_M");
}
