//! What of the host's cores this process may use, where its control group limits it: containers with a CPU limit.

use std::fs;
use std::path::{Path, PathBuf};

/// Where control groups are mounted.
const MOUNT: &str = "/sys/fs/cgroup";

/// Cores that this process and its siblings may use together; none where nothing limits them.
pub fn cores() -> Option<f64> {
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    cores_of(&groups, Path::new(MOUNT))
}

/// The tightest limit of the process's group and those above it. `groups` is `/proc/PID/cgroup`.
fn cores_of(groups: &str, mount: &Path) -> Option<f64> {
    let mut tightest: Option<f64> = None;
    for line in groups.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else { continue };
        let (root, read): (PathBuf, fn(&Path) -> Option<f64>) = match controllers {
            "" => (mount.to_owned(), of_version_2),
            _ if controllers.split(',').any(|name| name == "cpu") => (mount.join("cpu"), of_version_1),
            _ => continue,
        };
        // In a container the path may be the host's, while the mount shows the group as its root.
        let own = root.join(path.trim_start_matches('/'));
        let all = own.ancestors().take_while(|group| group.starts_with(&root));
        tightest = all.filter_map(read).chain(tightest).min_by(f64::total_cmp);
    }
    tightest
}

/// `QUOTA PERIOD`, or `max PERIOD`.
fn of_version_2(group: &Path) -> Option<f64> {
    let text = fs::read_to_string(group.join("cpu.max")).ok()?;
    let (quota, period) = text.trim().split_once(' ')?;
    ratio(quota, period)
}

/// -1 is no limit.
fn of_version_1(group: &Path) -> Option<f64> {
    let quota = fs::read_to_string(group.join("cpu.cfs_quota_us")).ok()?;
    let period = fs::read_to_string(group.join("cpu.cfs_period_us")).ok()?;
    ratio(quota.trim(), period.trim())
}

fn ratio(quota: &str, period: &str) -> Option<f64> {
    let (quota, period): (f64, f64) = (quota.parse().ok()?, period.parse().ok()?);
    (quota > 0.0 && period > 0.0).then_some(quota / period)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(root: &Path, file: &str, text: &str) {
        let path = root.join(file);
        fs::create_dir_all(path.parent().expect("a folder")).unwrap();
        fs::write(path, text).unwrap();
    }

    #[test]
    fn the_tightest_limit_on_the_way_counts() {
        let root = std::env::temp_dir().join(format!("spillway-quota-{}", std::process::id()));
        put(&root, "pods/cpu.max", "200000 100000\n");
        put(&root, "pods/one/cpu.max", "max 100000\n");
        put(&root, "pods/two/cpu.max", "50000 100000\n");
        put(&root, "cpu/old/cpu.cfs_quota_us", "25000\n");
        put(&root, "cpu/old/cpu.cfs_period_us", "10000\n");
        put(&root, "cpu/free/cpu.cfs_quota_us", "-1\n");
        put(&root, "cpu/free/cpu.cfs_period_us", "10000\n");
        let cores = |groups: &str| cores_of(groups, &root);
        assert_eq!(cores("0::/pods/one\n"), Some(2.0), "of the group above");
        assert_eq!(cores("0::/pods/two\n"), Some(0.5));
        assert_eq!(cores("3:memory:/x\n2:cpu,cpuacct:/old\n0::/\n"), Some(2.5));
        assert_eq!(cores("2:cpu,cpuacct:/free\n"), None);
        assert_eq!(cores("0::/elsewhere/on/the/host\n"), None);
        assert_eq!(cores("nonsense\n1:\n"), None);
        put(&root, "cpu.max", "150000 100000\n");
        assert_eq!(cores("0::/elsewhere/on/the/host\n"), Some(1.5), "a container's own root");
        fs::remove_dir_all(&root).unwrap();
    }
}
