//! The CPU quota of the process's control group, which container runtimes set.

use std::fs;
use std::path::{Path, PathBuf};

const MOUNT: &str = "/sys/fs/cgroup";

/// Cores that the processes of this control group may use together; `None` without a limit.
pub fn cores() -> Option<f64> {
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    cores_of(&groups, Path::new(MOUNT))
}

/// The smallest quota of the process's group and its ancestors. `groups`: the text of `/proc/PID/cgroup`.
fn cores_of(groups: &str, mount: &Path) -> Option<f64> {
    let mut smallest: Option<f64> = None;
    for line in groups.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else { continue };
        let (root, read_quota): (PathBuf, fn(&Path) -> Option<f64>) = match controllers {
            "" => (mount.to_owned(), quota_v2),
            _ if controllers.split(',').any(|name| name == "cpu") => (mount.join("cpu"), quota_v1),
            _ => continue,
        };
        // In a container `path` may be the host's; the root of the mount is then the process's own group.
        let own = root.join(path.trim_start_matches('/'));
        let groups = own.ancestors().take_while(|group| group.starts_with(&root));
        smallest = groups.filter_map(read_quota).chain(smallest).min_by(f64::total_cmp);
    }
    smallest
}

/// Version 2 of control groups: `QUOTA PERIOD` or `max PERIOD`.
fn quota_v2(group: &Path) -> Option<f64> {
    let text = fs::read_to_string(group.join("cpu.max")).ok()?;
    let (quota, period) = text.trim().split_once(' ')?;
    ratio(quota, period)
}

/// Version 1 of control groups: a quota of -1 means no limit.
fn quota_v1(group: &Path) -> Option<f64> {
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

    fn write_file(root: &Path, file: &str, text: &str) {
        let path = root.join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    #[test]
    fn smallest_quota_of_a_group_and_its_ancestors_applies() {
        let root = std::env::temp_dir().join(format!("spillway-quota-{}", std::process::id()));
        write_file(&root, "pods/cpu.max", "200000 100000\n");
        write_file(&root, "pods/one/cpu.max", "max 100000\n");
        write_file(&root, "pods/two/cpu.max", "50000 100000\n");
        write_file(&root, "cpu/old/cpu.cfs_quota_us", "25000\n");
        write_file(&root, "cpu/old/cpu.cfs_period_us", "10000\n");
        write_file(&root, "cpu/free/cpu.cfs_quota_us", "-1\n");
        write_file(&root, "cpu/free/cpu.cfs_period_us", "10000\n");
        let cores = |groups: &str| cores_of(groups, &root);
        assert_eq!(cores("0::/pods/one\n"), Some(2.0), "the parent's quota should apply");
        assert_eq!(cores("0::/pods/two\n"), Some(0.5));
        assert_eq!(cores("3:memory:/x\n2:cpu,cpuacct:/old\n0::/\n"), Some(2.5));
        assert_eq!(cores("2:cpu,cpuacct:/free\n"), None);
        assert_eq!(cores("0::/elsewhere/on/the/host\n"), None);
        assert_eq!(cores("nonsense\n1:\n"), None);
        write_file(&root, "cpu.max", "150000 100000\n");
        assert_eq!(
            cores("0::/elsewhere/on/the/host\n"),
            Some(1.5),
            "the quota at the root of the mount should apply"
        );
        fs::remove_dir_all(&root).unwrap();
    }
}
