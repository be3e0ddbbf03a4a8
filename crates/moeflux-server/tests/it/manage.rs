//! Managing models: who may, and what requests and responses look like.

use std::fmt::Write as _;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use moeflux_server::http::{
    ApiKeys, CatalogueModel, MachineFit, ManageAccess, ManageRefusal, ManageResult, ModelCatalogue,
    ModelManager, ModelOffer, ModelPlace, RefusalReason, ServerConfig, TaskKind, TaskState,
    TaskStatus,
};
use serde_json::{Value as Json, json};

use crate::client::{Response, request};
use crate::server::Running;

const BROWSER: &str = "accept: text/html\r\n";
const JSON: &str = "content-type: application/json\r\n";

/// All paths at which something is done.
const POSTS: [(&str, &str); 5] = [
    ("/moeflux/offer", r#"{"model": "a/b"}"#),
    ("/moeflux/pull", r#"{"model": "a/b", "bytes": 7}"#),
    ("/moeflux/load", r#"{"model": "a/b"}"#),
    ("/moeflux/remove", r#"{"model": "a/b"}"#),
    ("/moeflux/cancel", "{}"),
];

/// A manager that notes what it is asked for.
#[derive(Debug, Default)]
struct NotingManager {
    asked: Mutex<String>,
    refusal: Option<ManageRefusal>,
}

impl NotingManager {
    fn note(&self, what: &str) -> ManageResult<TaskStatus> {
        writeln!(self.asked.lock().unwrap(), "{what}").unwrap();
        match &self.refusal {
            Some(refusal) => Err(refusal.clone()),
            None => Ok(task()),
        }
    }

    fn take_asked(&self) -> String {
        std::mem::take(&mut self.asked.lock().unwrap())
    }
}

impl ModelManager for NotingManager {
    fn catalogue(&self) -> ManageResult<ModelCatalogue> {
        Ok(catalogue())
    }

    fn offer(&self, id: &str) -> ManageResult<ModelOffer> {
        self.note(&format!("offer {id}"))?;
        Ok(offer())
    }

    fn task(&self) -> Option<TaskStatus> {
        Some(task())
    }

    fn pull(&self, id: &str, n_bytes: u64) -> ManageResult<TaskStatus> {
        self.note(&format!("pull {id} {n_bytes}"))
    }

    fn load(&self, id: &str) -> ManageResult<TaskStatus> {
        self.note(&format!("load {id}"))
    }

    fn remove(&self, id: &str) -> ManageResult<TaskStatus> {
        self.note(&format!("remove {id}"))
    }

    fn cancel(&self) -> ManageResult<TaskStatus> {
        self.note("cancel")
    }
}

fn model(id: &str, place: ModelPlace) -> CatalogueModel {
    CatalogueModel {
        id: id.to_owned(),
        name: "B".to_owned(),
        size: None,
        place,
        repository: Some("a/b".to_owned()),
        stored: Some("4 bits".to_owned()),
        download_bytes: Some(9),
        here_bytes: 2,
        plan: Some(MachineFit::Runs {
            in_memory: 0.5,
            is_dense: false,
            drive_bytes_per_token: (1.0, 2.0),
            answer: (3.0, 4.0),
            prompt: (5.0, 6.0),
            bound: "drive",
        }),
        problem: None,
    }
}

fn catalogue() -> ModelCatalogue {
    let plan = Some(MachineFit::TooLarge { least_bytes: 8 });
    let problem = Some("moeflux cannot run it".to_owned());
    ModelCatalogue {
        hub: Some("huggingface.co".to_owned()),
        free_disk_bytes: Some(11),
        memory_bytes: Some(12),
        current: "served".to_owned(),
        models: vec![
            model("served", ModelPlace::Cache),
            model("cached", ModelPlace::Cache),
            model("folder", ModelPlace::Folder),
            model("partial", ModelPlace::Partial),
            model("hub", ModelPlace::Hub),
            CatalogueModel { plan, ..model("large", ModelPlace::Cache) },
            CatalogueModel { problem, ..model("unsupported", ModelPlace::Hub) },
        ],
    }
}

fn offer() -> ModelOffer {
    ModelOffer {
        id: "a/b".to_owned(),
        name: "B".to_owned(),
        n_files: 3,
        n_bytes: 9,
        missing_bytes: 7,
        free_bytes: None,
        fits_drive: true,
        described: Some("qwen3_moe".to_owned()),
        expected: None,
        problem: None,
    }
}

fn task() -> TaskStatus {
    TaskStatus {
        id: 4,
        kind: TaskKind::Pull,
        model: "a/b".to_owned(),
        name: "B".to_owned(),
        state: TaskState::Running,
        phase: "downloading",
        bytes: Some((3, 9)),
        bytes_per_s: None,
        time: Duration::from_millis(1_500),
        n_answers: None,
        message: None,
    }
}

/// A server with a manager, and that manager.
fn running(
    change: impl FnOnce(&mut ServerConfig),
    refusal: Option<ManageRefusal>,
) -> (Running, Arc<NotingManager>) {
    let manager = Arc::new(NotingManager { refusal, ..NotingManager::default() });
    let given = Arc::clone(&manager);
    let server = Running::with(move |wanted| {
        change(&mut wanted.config);
        wanted.manager = Some(given);
    });
    (server, manager)
}

type ConfigChange = Box<dyn Fn(&mut ServerConfig)>;

/// The token of the start, from the page.
fn start(server: &Running) -> String {
    let page = server.ask(&request("GET", "/", BROWSER, ""));
    let (_, rest) = page.text().split_once("<meta name=\"moeflux-start\" content=\"").unwrap();
    rest.split('"').next().unwrap().to_owned()
}

fn send(server: &Running, (path, body): (&str, &str), headers: &str) -> Response {
    server.ask(&request("POST", path, &format!("{JSON}{headers}"), body))
}

fn code(response: &Response) -> Json {
    response.json()["error"]["code"].clone()
}

#[test]
fn the_page_asks_and_the_manager_does() {
    let (server, manager) = running(|_| {}, None);
    let token = start(&server);
    assert!(token.len() == 32 && token.bytes().all(|it| it.is_ascii_hexdigit()), "{token}");
    let headers = format!("x-moeflux-start: {token}\r\norigin: http://localhost\r\n");
    let expected = ["offer a/b\n", "pull a/b 7\n", "load a/b\n", "remove a/b\n", "cancel\n"];
    let task = json!({"id": 4, "kind": "pull", "model": "a/b", "name": "B", "state": "running",
        "phase": "downloading", "done_bytes": 3, "total_bytes": 9, "bytes_per_s": null,
        "seconds": 1.5, "n_answers": null, "message": null});
    for (post, expected) in POSTS.into_iter().zip(expected) {
        let done = send(&server, post, &headers);
        assert_eq!(manager.take_asked(), expected);
        if post.0 == "/moeflux/offer" {
            let expected = json!({"model": "a/b", "name": "B", "n_files": 3, "bytes": 9,
                "missing_bytes": 7, "free_bytes": null, "fits_drive": true, "runs": true,
                "described": "qwen3_moe", "expected": null, "problem": null});
            assert_eq!((done.status, done.json()), (200, expected));
        } else {
            assert_eq!((done.status, done.json()), (202, json!({"task": task})), "{}", post.0);
        }
    }
    assert_eq!(server.get("/moeflux/task").success(), json!({"task": task}));
}

#[test]
fn the_catalogue_says_what_is_possible() {
    let (server, _) = running(|_| {}, None);
    let listed = server.get("/moeflux/models").success();
    assert_eq!(listed["manage"], json!({"allowed": true, "reason": null}));
    assert_eq!((&listed["current"], &listed["memory_bytes"]), (&json!("served"), &json!(12)));
    let can: Vec<(&str, &Json)> = listed["models"]
        .as_array()
        .unwrap()
        .iter()
        .map(|model| (model["id"].as_str().unwrap(), &model["can"]))
        .collect();
    let expected = [
        ("served", json!([])),
        ("cached", json!(["load", "remove"])),
        ("folder", json!(["load"])),
        ("partial", json!(["pull", "remove"])),
        ("hub", json!(["pull"])),
        ("large", json!(["remove"])),
        ("unsupported", json!([])),
    ];
    assert_eq!(can, expected.iter().map(|(id, can)| (*id, can)).collect::<Vec<_>>());
    let plan = json!({"fits": true, "least_bytes": null, "in_memory": 0.5,
        "is_dense": false, "drive_bytes_per_token": [1.0, 2.0], "answer_tokens_per_s": [3.0, 4.0],
        "prompt_tokens_per_s": [5.0, 6.0], "bound": "drive"});
    assert_eq!(listed["models"][1]["plan"], plan);
    assert_eq!(listed["models"][5]["plan"], json!({"fits": false, "least_bytes": 8}));
    // Who may not manage is told why, and still sees the list.
    let (server, _) = running(|config| config.allowed_hosts = vec!["a".to_owned()], None);
    let listed = server.get("/moeflux/models").success();
    assert_eq!(listed["manage"]["allowed"], false);
    assert!(listed["manage"]["reason"].as_str().unwrap().contains("other hosts"), "{listed}");
    let models = listed["models"].as_array().unwrap();
    assert!(models.iter().all(|model| model["can"] == json!([])));
}

#[test]
fn nothing_is_done_without_the_right_to_it() {
    let (server, manager) = running(|_| {}, None);
    let token = start(&server);
    let with = |more: &str| format!("x-moeflux-start: {token}\r\n{more}");
    let other_start = token.replace(|it| it != '0', "0");
    let refusals = [
        ("no token", String::new(), 403, "stale_start"),
        ("another start", format!("x-moeflux-start: {other_start}\r\n"), 403, "stale_start"),
        ("a part of it", format!("x-moeflux-start: {}\r\n", &token[1..]), 403, "stale_start"),
        ("a proxy", with("x-forwarded-for: 192.0.2.1\r\n"), 403, "manage_off"),
        ("an older proxy", with("forwarded: for=192.0.2.1\r\n"), 403, "manage_off"),
        ("a cache", with("via: 1.1 a\r\n"), 403, "manage_off"),
    ];
    for post in POSTS {
        for (what, headers, status, expected) in &refusals {
            let refused = send(&server, post, headers);
            assert_eq!((refused.status, code(&refused)), (*status, json!(expected)), "{what}");
        }
        // Refused by the guard: names that resolve to this machine, and foreign pages.
        let foreign = send(&server, post, &with("origin: http://a.example\r\n"));
        let sandboxed = send(&server, post, &with("origin: null\r\n"));
        let name = server.ask(
            format!(
                "POST {} HTTP/1.1\r\nhost: a.example\r\n{JSON}{}content-length: {}\r\n\r\n{}",
                post.0,
                with(""),
                post.1.len(),
                post.1
            )
            .as_bytes(),
        );
        assert_eq!([foreign.status, sandboxed.status, name.status], [403, 403, 403]);
        // What a form can send without asking.
        for kind in ["", "content-type: text/plain\r\n", "content-type: multipart/form-data\r\n"] {
            let headers = with(kind);
            assert_eq!(server.ask(&request("POST", post.0, &headers, post.1)).status, 415);
        }
        assert_eq!(server.get(post.0).status, 405);
    }
    assert_eq!(manager.take_asked(), "");
}

#[test]
fn servers_that_others_use_are_managed_with_a_marked_key_only() {
    let keys = || ApiKeys::from_lines("sk-user\nsk-owner manage").unwrap();
    let key = |key: &str| format!("authorization: Bearer {key}\r\n");
    for (is_allowed, change) in [
        (false, Box::new(move |config: &mut ServerConfig| config.keys = keys()) as ConfigChange),
        (
            false,
            Box::new(|config: &mut ServerConfig| {
                config.allowed_hosts = vec!["a.example".to_owned()];
            }),
        ),
        (
            false,
            Box::new(|config: &mut ServerConfig| {
                config.allowed_origins = vec!["http://a".to_owned()];
            }),
        ),
        (
            true,
            Box::new(move |config| {
                config.keys = keys();
                config.manage = ManageAccess::MarkedKeys;
            }),
        ),
    ] {
        let (server, manager) = running(change, None);
        let token = format!("x-moeflux-start: {}\r\n", start(&server));
        for post in POSTS {
            for (name, is_owner) in [("sk-user", false), ("sk-owner", true)] {
                let done = send(&server, post, &(token.clone() + &key(name)));
                let asked = manager.take_asked();
                if is_allowed && is_owner {
                    assert!(matches!(done.status, 200 | 202) && !asked.is_empty(), "{name}");
                } else {
                    assert_eq!((done.status, code(&done)), (403, json!("manage_off")), "{name}");
                    assert_eq!(asked, "");
                }
            }
        }
        if is_allowed {
            // A page of an origin that may use the server is still another page.
            let headers = token.clone() + &key("sk-owner") + "origin: http://a\r\n";
            assert_eq!(send(&server, POSTS[2], &headers).status, 403);
            // A proxy in front of keys is as good as none.
            let headers = token + &key("sk-owner") + "x-forwarded-for: 192.0.2.1\r\n";
            assert_eq!(send(&server, POSTS[2], &headers).status, 202);
        }
    }
}

#[test]
fn refusals_of_the_manager_have_codes() {
    for (reason, status, expected) in [
        (RefusalReason::Busy, 409, "busy"),
        (RefusalReason::Idle, 409, "idle"),
        (RefusalReason::Changed, 409, "changed"),
        (RefusalReason::NoSpace, 409, "no_space"),
        (RefusalReason::UnknownModel, 404, "unknown_model"),
        (RefusalReason::Invalid, 400, "invalid"),
    ] {
        let refusal = ManageRefusal { reason, message: "as the test wants it".to_owned() };
        let (server, _) = running(|_| {}, Some(refusal));
        let token = format!("x-moeflux-start: {}\r\n", start(&server));
        for post in POSTS {
            let refused = send(&server, post, &token);
            let error = refused.json()["error"].clone();
            assert_eq!((refused.status, &error["code"]), (status, &json!(expected)));
            assert_eq!(error["message"], "as the test wants it");
        }
    }
}

#[test]
fn malformed_requests_are_refused_by_their_field() {
    let (server, manager) = running(|_| {}, None);
    let token = format!("x-moeflux-start: {}\r\n", start(&server));
    let long = format!("{{\"model\": \"{}\"}}", "a".repeat(513));
    for (path, body, word) in [
        ("/moeflux/load", "", "the body"),
        ("/moeflux/load", "[]", "`model`"),
        ("/moeflux/load", r#"{"model": ""}"#, "`model`"),
        ("/moeflux/load", r#"{"model": 1}"#, "`model`"),
        ("/moeflux/load", long.as_str(), "`model`"),
        ("/moeflux/pull", r#"{"model": "a/b"}"#, "`bytes`"),
        ("/moeflux/pull", r#"{"model": "a/b", "bytes": -1}"#, "`bytes`"),
        ("/moeflux/pull", r#"{"model": "a/b", "bytes": "7"}"#, "`bytes`"),
    ] {
        let refused = send(&server, (path, body), &token);
        assert_eq!(refused.status, 400, "{body}");
        assert!(refused.text().contains(word), "{}", refused.text());
    }
    assert_eq!(manager.take_asked(), "");
}

#[test]
fn a_server_without_a_manager_has_no_token_and_does_nothing() {
    let server = Running::new();
    assert_eq!(start(&server), "");
    for path in ["/moeflux/models", "/moeflux/task"] {
        assert_eq!(server.get(path).status, 404);
    }
    for post in POSTS {
        assert_eq!(send(&server, post, "x-moeflux-start: \r\n").status, 404);
    }
}

#[test]
fn the_page_of_an_earlier_start_is_not_reused() {
    let (server, _) = running(|_| {}, None);
    let page = server.ask(&request("GET", "/", BROWSER, ""));
    let etag = page.header("etag").unwrap();
    let known = |etag: &str| format!("{BROWSER}if-none-match: {etag}\r\n");
    assert_eq!(server.ask(&request("GET", "/", &known(etag), "")).status, 304);
    let (other, _) = running(|_| {}, None);
    assert_ne!(start(&server), start(&other));
    assert_eq!(other.ask(&request("GET", "/", &known(etag), "")).status, 200);
}
