//! The manifests in packaging/kubernetes: every field is valid, and ports, labels and secrets agree.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use k8s_openapi::api::apps::v1::{Deployment, StatefulSet};
use k8s_openapi::api::core::v1::{ConfigMap, Service};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use serde::de::{Deserialize, DeserializeOwned};
use serde_json::Value;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/kubernetes")
}

fn documents() -> Vec<Value> {
    let mut all = Vec::new();
    for path in fs::read_dir(folder()).unwrap().map(|entry| entry.unwrap().path()) {
        if path.extension().is_some_and(|end| end == "yaml") {
            let text = fs::read_to_string(&path).unwrap();
            all.extend(parse(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display())));
        }
    }
    assert!(all.len() >= 11);
    all
}

fn parse(text: &str) -> Result<Vec<Value>, String> {
    // Parsed as YAML values first: that type rejects duplicate keys.
    let documents = serde_yaml_ng::Deserializer::from_str(text).map(serde_yaml_ng::Value::deserialize);
    documents
        .map(|document| {
            let document = document.map_err(|error| error.to_string())?;
            serde_json::to_value(document).map_err(|error| error.to_string())
        })
        .collect()
}

/// Fails if Kubernetes would reject a document or ignore some of its fields.
fn check(document: &Value) -> Result<(), String> {
    match document["kind"].as_str() {
        Some("ConfigMap") => check_as::<ConfigMap>(document),
        Some("Deployment") => check_as::<Deployment>(document),
        Some("NetworkPolicy") => check_as::<NetworkPolicy>(document),
        Some("PodDisruptionBudget") => check_as::<PodDisruptionBudget>(document),
        Some("Service") => check_as::<Service>(document),
        Some("StatefulSet") => check_as::<StatefulSet>(document),
        other => Err(format!("kind {other:?} is not checked yet: add it here")),
    }
}

/// Compares a document with what the types of Kubernetes' API, which ignore unknown fields, print of it.
fn check_as<T: DeserializeOwned + serde::Serialize>(document: &Value) -> Result<(), String> {
    let parsed: T = T::deserialize(document).map_err(|error| error.to_string())?;
    let printed = serde_json::to_value(parsed).map_err(|error| error.to_string())?;
    compare(document, &printed, "")
}

fn compare(given: &Value, printed: &Value, path: &str) -> Result<(), String> {
    match (given, printed) {
        (Value::Object(given), Value::Object(printed)) => given.iter().try_for_each(|(key, value)| {
            let path = format!("{path}.{key}");
            compare(value, printed.get(key).ok_or_else(|| format!("{path} is not known"))?, &path)
        }),
        (Value::Array(given), Value::Array(printed)) if given.len() == printed.len() => {
            let mut pairs = given.iter().zip(printed).enumerate();
            pairs.try_for_each(|(n, (given, printed))| compare(given, printed, &format!("{path}[{n}]")))
        }
        _ if given == printed => Ok(()),
        _ => Err(format!("{path} is {given}, and understood as {printed}")),
    }
}

#[test]
fn every_field_of_the_manifests_is_known() {
    for document in documents() {
        check(&document).unwrap_or_else(|error| panic!("{}: {error}", document["metadata"]["name"]));
    }
}

#[test]
fn misspelt_fields_and_wrong_types_are_reported() {
    let text = fs::read_to_string(folder().join("helper.yaml")).unwrap();
    let error_after_change = |from: &str, to: &str| {
        assert!(text.contains(from), "{from}");
        let found = parse(&text.replacen(from, to, 1)).and_then(|all| all.iter().try_for_each(check));
        found.expect_err(to)
    };
    for (from, to, expected) in [
        ("readOnlyRootFilesystem:", "readOnlyRootFileSystem:", "readOnlyRootFileSystem is not known"),
        ("topologySpreadConstraints:", "topologySpreadConstraint:", ".topologySpreadConstraint is not known"),
        ("  minAvailable:", "  minAvailble:", ".spec.minAvailble is not known"),
        ("replicas: 2", "replicas: two", "invalid type"),
        ("containerPort: 11411", "containerPort: link", "invalid type"),
        ("kind: Service", "kind: Servise", "Servise"),
        ("apiVersion: apps/v1", "apiVersion: apps/v2", "apps/v2"),
        ("  name: spillway-helper", "  name: spillway-helper\n  name: twice", "duplicate"),
    ] {
        let error = error_after_change(from, to);
        assert!(error.contains(expected), "{to}: {error}");
    }
}

struct Pods {
    name: String,
    labels: BTreeMap<String, String>,
    spec: Value,
}

impl Pods {
    fn containers(&self) -> impl Iterator<Item = &Value> {
        ["initContainers", "containers"].into_iter().flat_map(|list| items(&self.spec[list]))
    }

    fn ports(&self) -> BTreeMap<&str, (u64, &str)> {
        let ports = self.containers().flat_map(|container| items(&container["ports"]));
        ports
            .map(|port| {
                (text(&port["name"]), (port["containerPort"].as_u64().unwrap(), text(&port["protocol"])))
            })
            .collect()
    }

    fn is_selected(&self, selector: &Value) -> bool {
        let selector = selector.as_object().expect("labels");
        !selector.is_empty()
            && selector.iter().all(|(key, value)| self.labels.get(key).map(String::as_str) == value.as_str())
    }
}

fn items(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_else(|| panic!("{value} is not text"))
}

fn pods(documents: &[Value]) -> Vec<Pods> {
    let templates = documents.iter().filter(|document| document["spec"]["template"].is_object());
    let all: Vec<Pods> = templates
        .map(|document| {
            let template = &document["spec"]["template"];
            let labels = serde_json::from_value(template["metadata"]["labels"].clone()).unwrap();
            let name = text(&document["metadata"]["name"]).to_owned();
            let pods = Pods { name, labels, spec: template["spec"].clone() };
            assert!(pods.is_selected(&document["spec"]["selector"]["matchLabels"]), "{}", pods.name);
            pods
        })
        .collect();
    assert_eq!(all.len(), 3);
    all
}

fn of_kind<'a>(documents: &'a [Value], kind: &'a str) -> impl Iterator<Item = &'a Value> {
    documents.iter().filter(move |document| document["kind"] == kind)
}

#[test]
fn no_pod_has_privileges() {
    for Pods { name, spec, .. } in pods(&documents()) {
        let pod = &spec["securityContext"];
        assert_eq!(
            (&pod["runAsNonRoot"], &pod["seccompProfile"]["type"]),
            (&true.into(), &"RuntimeDefault".into()),
            "{name}"
        );
        assert!(pod["runAsUser"].as_u64().is_some_and(|user| user > 0), "{name}");
        assert_eq!(spec["automountServiceAccountToken"], false, "{name}");
        for shared in ["hostNetwork", "hostPID", "hostIPC"] {
            assert!(spec[shared].is_null(), "{name}");
        }
        for container in ["initContainers", "containers"].into_iter().flat_map(|list| items(&spec[list])) {
            let context = &container["securityContext"];
            assert_eq!(context["allowPrivilegeEscalation"], false, "{name}");
            assert_eq!(context["readOnlyRootFilesystem"], true, "{name}");
            assert_eq!(context["capabilities"], serde_json::json!({ "drop": ["ALL"] }), "{name}");
            assert!(context["privileged"].is_null() && context["runAsUser"].is_null(), "{name}");
            assert!(container["resources"]["limits"]["memory"].is_string(), "{name}");
        }
        let volumes = items(&spec["volumes"]);
        volumes.for_each(|volume| assert!(volume["hostPath"].is_null(), "{name}"));
    }
}

#[test]
fn ports_labels_and_secrets_agree() {
    let documents = documents();
    let pods = pods(&documents);
    for service in of_kind(&documents, "Service") {
        let name = &service["metadata"]["name"];
        let selection: Vec<&Pods> =
            pods.iter().filter(|pods| pods.is_selected(&service["spec"]["selector"])).collect();
        let [selected] = selection[..] else { panic!("{name} selects {} kinds of pods", selection.len()) };
        for port in items(&service["spec"]["ports"]) {
            let target = selected.ports()[text(&port["targetPort"])];
            assert_eq!(target, (port["port"].as_u64().unwrap(), text(&port["protocol"])), "{name}");
        }
    }
    for budget in of_kind(&documents, "PodDisruptionBudget") {
        assert!(pods.iter().any(|pods| pods.is_selected(&budget["spec"]["selector"]["matchLabels"])));
    }
    let secrets: BTreeSet<&str> = pods.iter().flat_map(mounted_secrets).collect();
    let page = fs::read_to_string(folder().join("README.md")).unwrap();
    for secret in &secrets {
        assert!(page.contains(&format!("create secret generic {secret} --from-file=")), "{secret}");
    }
    assert_eq!(secrets.len(), 2);
    for pods in &pods {
        let ports = pods.ports();
        let volumes: BTreeSet<&str> =
            items(&pods.spec["volumes"]).map(|volume| text(&volume["name"])).collect();
        for container in pods.containers() {
            let mounts = || items(&container["volumeMounts"]);
            assert!(mounts().all(|mount| volumes.contains(text(&mount["name"]))), "{}", pods.name);
            for key in container.to_string().split(['"', ' ']).filter(|word| word.starts_with("/keys/")) {
                assert!(mounts().any(|mount| key.starts_with(text(&mount["mountPath"]))), "{key}");
            }
            for probe in ["startupProbe", "readinessProbe", "livenessProbe"] {
                let probe = &container[probe];
                let port = ["httpGet", "tcpSocket"].iter().find_map(|kind| probe[kind]["port"].as_str());
                assert!(probe.is_null() || ports.contains_key(port.unwrap()), "{}: {probe}", pods.name);
            }
        }
    }
}

fn mounted_secrets(pods: &Pods) -> impl Iterator<Item = &str> {
    items(&pods.spec["volumes"]).filter_map(|volume| volume["secret"]["secretName"].as_str())
}

#[test]
fn network_policies_name_existing_pods_and_ports() {
    let documents = documents();
    let all = pods(&documents);
    let mut opened_ports = BTreeSet::new();
    for policy in of_kind(&documents, "NetworkPolicy") {
        let name = text(&policy["metadata"]["name"]);
        let selection: Vec<&Pods> = all
            .iter()
            .filter(|pods| pods.is_selected(&policy["spec"]["podSelector"]["matchLabels"]))
            .collect();
        let [selected] = selection[..] else { panic!("{name} selects {} kinds of pods", selection.len()) };
        for rule in items(&policy["spec"]["ingress"]) {
            let peers: Vec<&Value> = items(&rule["from"]).collect();
            assert!(!peers.is_empty(), "{name} allows every source");
            for port in items(&rule["ports"]) {
                let target = (port["port"].as_u64().unwrap(), text(&port["protocol"]));
                assert!(selected.ports().values().any(|port| *port == target), "{name}: {target:?}");
                for peer in &peers {
                    let labels = &peer["podSelector"]["matchLabels"];
                    let prometheus = peer["namespaceSelector"].is_object();
                    let peer_name = if prometheus {
                        "prometheus"
                    } else {
                        let peer_name = all.iter().find(|pods| pods.is_selected(labels));
                        &peer_name.unwrap_or_else(|| panic!("{name}: no pod has the labels {labels}")).name
                    };
                    opened_ports.insert((
                        selected.name.clone(),
                        target.0,
                        target.1.to_owned(),
                        peer_name.to_owned(),
                    ));
                }
            }
        }
    }
    let expected = [
        ("app", 9412, "TCP", "prometheus"),
        ("cache", 11211, "TCP", "app"),
        ("cache", 11411, "TCP", "app"),
        ("cache", 11411, "TCP", "spillway-helper"),
        ("spillway-helper", 9411, "TCP", "prometheus"),
        ("spillway-helper", 11411, "TCP", "app"),
        ("spillway-helper", 11411, "UDP", "app"),
    ];
    let opened_ports: Vec<_> = opened_ports
        .iter()
        .map(|(to, port, kind, peer_name)| (&**to, *port, &**kind, &**peer_name))
        .collect();
    assert_eq!(opened_ports, expected);
}

#[test]
fn the_helpers_configuration_is_valid_and_matches_the_other_manifests() {
    let documents = documents();
    let config = of_kind(&documents, "ConfigMap").next().unwrap();
    let toml = text(&config["data"]["helper.toml"]);
    let services: BTreeMap<&str, u64> = of_kind(&documents, "Service")
        .map(|service| {
            (text(&service["metadata"]["name"]), service["spec"]["ports"][0]["port"].as_u64().unwrap())
        })
        .collect();
    // Host names of the cluster cannot be resolved here; check instead that they are Services.
    let (mut parsed, mut names) = (toml.to_owned(), 0);
    for (name, port) in &services {
        let target = format!("\"{name}:{port}\"");
        names += toml.matches(&target).count();
        parsed = parsed.replace(&target, &format!("\"10.0.0.5:{port}\""));
    }
    assert_eq!(names, 1);
    let file =
        PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("kubernetes-{}.toml", std::process::id()));
    fs::write(&file, &parsed).unwrap();
    let checked = Command::new(env!("CARGO_BIN_EXE_spillway"))
        .args(["check", "--without-keys", "--show"])
        .arg(&file)
        .output()
        .unwrap();
    fs::remove_file(&file).unwrap();
    let shown = String::from_utf8_lossy(&checked.stdout);
    assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stderr));
    let all = pods(&documents);
    let helper = all.iter().find(|pods| pods.name == "spillway-helper").unwrap();
    let ports = helper.ports();
    assert!(shown.contains(&format!("metrics = \"0.0.0.0:{}\"", ports["metrics"].0)), "{shown}");
    assert!(shown.contains(&format!("link_listen = [\"0.0.0.0:{}\"", ports["link"].0)), "{shown}");
    for key in parsed.split('"').filter(|word| word.starts_with("/keys/")) {
        let mounts = helper.containers().flat_map(|container| items(&container["volumeMounts"]));
        assert!(mounts.into_iter().any(|mount| key.starts_with(text(&mount["mountPath"]))), "{key}");
    }
    let grace = helper.spec["terminationGracePeriodSeconds"].as_u64().unwrap();
    assert!(shown.contains("drain_deadline = \"30s\"") && grace > 30);

    // Sidecars use the addresses of the helpers and the server.
    let app = all.iter().find(|pods| pods.name == "app").unwrap();
    let sidecar = app.containers().find(|container| container["name"] == "spillway-sidecar").unwrap();
    let variable = |name: &str| {
        let found = items(&sidecar["env"]).find(|entry| entry["name"] == format!("SPILLWAY_SIDECAR_{name}"));
        text(&found.unwrap_or_else(|| panic!("no {name}"))["value"])
    };
    let target = |text: &str| {
        let (name, port) = text.rsplit_once(':').unwrap();
        assert_eq!(services.get(name).copied(), port.parse().ok(), "{text}");
    };
    target(variable("LINK"));
    target(variable("HELPERS").strip_prefix("dns:").unwrap());
    assert_eq!(variable("METRICS"), format!(":{}", app.ports()["metrics"].0));
    assert_eq!(sidecar["restartPolicy"], "Always");
}
