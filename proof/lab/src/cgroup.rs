//! Control groups of a run: quotas and CPU accounting, with cgroup v1 and v2.
//!
//! A host has one *quota* group and two *accounting* groups, `processes` and `interface`. The scheduler must
//! see a single group: two groups would each get half of the quota, however many threads they have.
//!
//! * v2: the accounting groups are children of the host's group without the cpu controller. Their tasks are
//!   scheduled in the host's group, but `usage_usec` counts in every group. Only leaves have processes, as v2
//!   demands.
//! * v1 with `cpu` and `cpuacct` mounted separately: each task is in the host's group of `cpu` and in one of
//!   the two groups of `cpuacct`.
//! * v1 with both mounted as one hierarchy: the two accounting groups are scheduled as groups, and [`Layout::describe`]
//!   reports this.
//!
//! NAPI threads can leave the root group, as all kernel threads that the kernel has not bound to a core.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::LabError;
use crate::cpu::{HostCpu, Quota};
use crate::namespace::kill;

const PROCESSES: &str = "processes";
const INTERFACE: &str = "interface";
const EMPTY_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum time until a new kernel thread runs for the first time.
const FIRST_RUN_TIMEOUT: Duration = Duration::from_secs(5);

/// The version of control groups, and where the cpu controller is mounted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Layout {
    /// cgroup v1; both paths may be the same directory.
    V1 {
        cpu: PathBuf,
        cpuacct: PathBuf,
    },
    V2 {
        root: PathBuf,
    },
}

impl Layout {
    pub fn detect() -> Result<Layout, LabError> {
        let mounts = fs::read_to_string("/proc/self/mountinfo")
            .map_err(LabError::io("cannot read /proc/self/mountinfo"))?;
        let controllers =
            |root: &Path| fs::read_to_string(root.join("cgroup.controllers")).unwrap_or_default();
        Layout::choose(&mounts, controllers).ok_or_else(|| {
            LabError::Cgroup(
                "no cpu controller is mounted: mount cgroup2 on /sys/fs/cgroup, or boot a kernel with \
                 CONFIG_CFS_BANDWIDTH and CONFIG_CGROUP_CPUACCT"
                    .into(),
            )
        })
    }

    fn choose(mountinfo: &str, controllers: impl Fn(&Path) -> String) -> Option<Layout> {
        let (mut cpu, mut cpuacct, mut v2) = (None, None, None);
        for line in mountinfo.lines() {
            // Format: "… mount-point options … - type source super-options"
            let Some((left, right)) = line.split_once(" - ") else { continue };
            let Some(mount_point) = left.split(' ').nth(4).map(PathBuf::from) else { continue };
            let mut right = right.split(' ');
            match right.next() {
                Some("cgroup") => {
                    for option in right.nth(1).unwrap_or_default().split(',') {
                        match option {
                            "cpu" => cpu = cpu.or(Some(mount_point.clone())),
                            "cpuacct" => cpuacct = cpuacct.or(Some(mount_point.clone())),
                            _ => {}
                        }
                    }
                }
                Some("cgroup2") if controllers(&mount_point).split_whitespace().any(|name| name == "cpu") => {
                    v2 = v2.or(Some(mount_point));
                }
                _ => {}
            }
        }
        match (v2, cpu, cpuacct) {
            (Some(root), ..) => Some(Layout::V2 { root }),
            (None, Some(cpu), Some(cpuacct)) => Some(Layout::V1 { cpu, cpuacct }),
            _ => None,
        }
    }

    pub fn describe(&self) -> &'static str {
        match self {
            Layout::V1 { cpu, cpuacct } if cpu == cpuacct => {
                "cgroup v1, cpu and cpuacct as one hierarchy (interface and processes scheduled as two groups)"
            }
            Layout::V1 { .. } => "cgroup v1",
            Layout::V2 { .. } => "cgroup v2",
        }
    }

    fn mount_points(&self) -> Vec<&Path> {
        match self {
            Layout::V1 { cpu, cpuacct } if cpu == cpuacct => vec![cpu],
            Layout::V1 { cpu, cpuacct } => vec![cpu, cpuacct],
            Layout::V2 { root } => vec![root],
        }
    }

    /// Name of the file of a group to which the ids of tasks that join the group are written.
    fn tasks_file(&self) -> &'static str {
        match self {
            Layout::V1 { .. } => "tasks",
            Layout::V2 { .. } => "cgroup.procs",
        }
    }

    pub fn create_run(&self, run: &str) -> Result<(), LabError> {
        for root in self.mount_points() {
            create(&root.join(run))?;
        }
        if let Layout::V2 { root } = self {
            enable_cpu_for_children(root)?;
            enable_cpu_for_children(&root.join(run))?;
        }
        self.set_largest_weight(run)
    }

    /// Gives a run's group the largest possible weight. With the default weight all hosts of the run together count as
    /// much as one kernel thread, and would wait for some milliseconds while such a thread runs.
    fn set_largest_weight(&self, run: &str) -> Result<(), LabError> {
        match self {
            Layout::V1 { cpu, .. } => write(&cpu.join(run).join("cpu.shares"), "262144"),
            Layout::V2 { root } => write(&root.join(run).join("cpu.weight"), "10000"),
        }
    }

    pub fn create_host(&self, run: &str, host: &str) -> Result<HostGroup, LabError> {
        let path = Path::new(run).join(host);
        let (quota, accounting) = match self {
            Layout::V1 { cpu, cpuacct } => (cpu.join(&path), cpuacct.join(&path)),
            Layout::V2 { root } => (root.join(&path), root.join(&path)),
        };
        create(&quota)?;
        create(&accounting)?;
        create(&accounting.join(PROCESSES))?;
        create(&accounting.join(INTERFACE))?;
        Ok(HostGroup { layout: self.clone(), quota, accounting })
    }

    /// Moves a thread out of the groups of all runs.
    pub fn move_to_root(&self, task: u32) {
        for root in self.mount_points() {
            // Fails only if the thread has ended.
            let _ = fs::write(root.join(self.tasks_file()), task.to_string());
        }
    }

    pub fn top_groups(&self) -> Vec<String> {
        let mut names = Vec::new();
        for entry in
            self.mount_points().into_iter().filter_map(|root| fs::read_dir(root).ok()).flatten().flatten()
        {
            if entry.path().is_dir() {
                names.push(entry.file_name().to_string_lossy().into_owned());
            }
        }
        names
    }

    /// Kills the processes of a run and removes its groups. Returns the numbers of processes killed and groups removed.
    pub fn remove_run(&self, run: &str) -> Result<(usize, usize), LabError> {
        let mut killed = std::collections::BTreeSet::new();
        let mut removed = 0;
        for root in self.mount_points() {
            let top = root.join(run);
            let mut groups = Vec::new();
            groups_below(&top, &mut groups);
            let deadline = Instant::now() + EMPTY_TIMEOUT;
            for group in &groups {
                loop {
                    self.empty(group, &mut killed);
                    match fs::remove_dir(group) {
                        Ok(()) => break removed += 1,
                        Err(e) if e.kind() == io::ErrorKind::NotFound => break,
                        Err(_) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(2)),
                        Err(e) => return Err(LabError::io(format!("cannot remove {}", group.display()))(e)),
                    }
                }
            }
        }
        Ok((killed.len(), removed))
    }

    /// Kills a group's processes, and moves its kernel threads, which cannot be killed, to the root group.
    fn empty(&self, group: &Path, killed: &mut std::collections::BTreeSet<u32>) {
        let members = fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
        for task in members.lines().filter_map(|line| line.parse().ok()) {
            if is_kernel_thread(task) {
                self.move_to_root(task);
            } else if kill(task) {
                killed.insert(task);
            }
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct HostGroup {
    layout: Layout,
    quota: PathBuf,
    accounting: PathBuf,
}

impl HostGroup {
    /// Sets or lifts the quota of processes and interface together.
    pub fn set_quota(&self, quota: Option<Quota>) -> Result<(), LabError> {
        let limit = quota.map(|q| q.micros()).transpose()?;
        match self.layout {
            Layout::V1 { .. } => {
                let (quota_us, period_us) =
                    limit.map_or((-1, 100_000), |(q, p)| (i64::try_from(q).unwrap_or(i64::MAX), p));
                // Lift the old quota first: with the new period it may exceed the kernel's limit.
                write(&self.quota.join("cpu.cfs_quota_us"), "-1")?;
                write(&self.quota.join("cpu.cfs_period_us"), &period_us.to_string())?;
                write(&self.quota.join("cpu.cfs_quota_us"), &quota_us.to_string())
            }
            Layout::V2 { .. } => {
                let text = limit.map_or("max 100000".to_owned(), |(q, p)| format!("{q} {p}"));
                write(&self.quota.join("cpu.max"), &text)
            }
        }
    }

    /// Moves an interface's kernel thread into the host's groups.
    pub fn adopt_interface_thread(&self, task: u32) -> Result<(), LabError> {
        for directory in self.memberships(INTERFACE) {
            let file = directory.join(self.layout.tasks_file());
            let deadline = Instant::now() + FIRST_RUN_TIMEOUT;
            loop {
                match fs::write(&file, task.to_string()) {
                    Ok(()) => break,
                    // Temporary if the kernel thread has not run yet, permanent if it is bound to a core.
                    Err(e) if e.raw_os_error() == Some(libc::EINVAL) && Instant::now() < deadline => {
                        std::thread::sleep(Duration::from_millis(1));
                    }
                    Err(e) => {
                        let group = directory.display();
                        let what = format!("cannot move the interface's kernel thread {task} into {group}");
                        return Err(LabError::io(what)(e));
                    }
                }
            }
        }
        Ok(())
    }

    /// Moves a thread out of the quota group, if quota and accounting are separate hierarchies.
    pub fn leave_quota_group(&self, task: u32) {
        if let Layout::V1 { cpu, cpuacct } = &self.layout
            && cpu != cpuacct
        {
            // Fails only if the thread has ended.
            let _ = fs::write(cpu.join("tasks"), task.to_string());
        }
    }

    /// Open files to which a new process writes "0", in this order, to join the host's groups.
    pub fn open_task_files(&self) -> Result<Vec<OwnedFd>, LabError> {
        self.memberships(PROCESSES)
            .into_iter()
            .map(|directory| {
                let file = directory.join(self.layout.tasks_file());
                let opened = fs::OpenOptions::new().write(true).open(&file);
                opened.map(OwnedFd::from).map_err(LabError::io(format!("cannot open {}", file.display())))
            })
            .collect()
    }

    pub fn cpu(&self) -> Result<HostCpu, LabError> {
        let stat = read(&self.quota.join("cpu.stat"))?;
        let throttled_time = match self.layout {
            Layout::V1 { .. } => Duration::from_nanos(field(&stat, "throttled_time")),
            Layout::V2 { .. } => Duration::from_micros(field(&stat, "throttled_usec")),
        };
        Ok(HostCpu {
            process: self.usage(PROCESSES)?,
            interface: self.usage(INTERFACE)?,
            periods: field(&stat, "nr_periods"),
            throttled_periods: field(&stat, "nr_throttled"),
            throttled_time,
        })
    }

    fn usage(&self, account: &str) -> Result<Duration, LabError> {
        let directory = self.accounting.join(account);
        match self.layout {
            Layout::V1 { .. } => {
                let text = read(&directory.join("cpuacct.usage"))?;
                Ok(Duration::from_nanos(text.trim().parse().unwrap_or(0)))
            }
            Layout::V2 { .. } => {
                Ok(Duration::from_micros(field(&read(&directory.join("cpu.stat"))?, "usage_usec")))
            }
        }
    }

    /// The groups that a task joins, in order: quota group, if in another hierarchy, and accounting group.
    fn memberships(&self, account: &str) -> Vec<PathBuf> {
        let leaf = self.accounting.join(account);
        if self.quota == self.accounting { vec![leaf] } else { vec![self.quota.clone(), leaf] }
    }
}

/// The value of `name` in lines `name value`; 0 without such a line.
fn field(text: &str, name: &str) -> u64 {
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    value.and_then(|v| v.trim().parse().ok()).unwrap_or(0)
}

fn enable_cpu_for_children(group: &Path) -> Result<(), LabError> {
    let file = group.join("cgroup.subtree_control");
    if read(&file)?.split_whitespace().any(|name| name == "cpu") {
        return Ok(());
    }
    fs::write(&file, "+cpu").map_err(LabError::io(format!(
        "cannot enable the cpu controller in {} (inside a container the controller must be delegated; on kernels with \
         CONFIG_RT_GROUP_SCHED all real-time processes must be in the root group)",
        file.display()
    )))
}

/// Kernel threads have no command line and kthreadd, process 2, as their parent.
fn is_kernel_thread(task: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{task}/stat")).unwrap_or_default();
    // "pid (comm) state ppid": `comm` may contain blanks and parentheses.
    stat.rsplit_once(") ").and_then(|(_, rest)| rest.split(' ').nth(1)) == Some("2")
}

/// Appends `top` and all groups below it, children first.
fn groups_below(top: &Path, into: &mut Vec<PathBuf>) {
    let Ok(entries) = fs::read_dir(top) else { return };
    for entry in entries.flatten() {
        if entry.file_type().is_ok_and(|t| t.is_dir()) {
            groups_below(&entry.path(), into);
        }
    }
    into.push(top.to_owned());
}

fn create(directory: &Path) -> Result<(), LabError> {
    match fs::create_dir(directory) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => {
            Err(LabError::io(format!("cannot make the control group {}", directory.display()))(e))
        }
        _ => Ok(()),
    }
}

fn read(file: &Path) -> Result<String, LabError> {
    fs::read_to_string(file).map_err(LabError::io(format!("cannot read {}", file.display())))
}

fn write(file: &Path, text: &str) -> Result<(), LabError> {
    fs::write(file, text).map_err(LabError::io(format!("cannot write {text:?} to {}", file.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEPARATE_MOUNTS: &str = "\
31 24 0:27 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755
32 31 0:28 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu
33 31 0:29 / /sys/fs/cgroup/cpuacct rw,relatime - cgroup cgroup rw,cpuacct
34 31 0:30 / /sys/fs/cgroup/cpuset rw,relatime - cgroup cgroup rw,cpuset
35 31 0:31 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
";

    #[test]
    fn the_cpu_controller_is_found_in_every_layout() {
        let no_controllers = |_: &Path| String::new();
        let split = Layout::V1 { cpu: "/sys/fs/cgroup/cpu".into(), cpuacct: "/sys/fs/cgroup/cpuacct".into() };
        assert_eq!(Layout::choose(SEPARATE_MOUNTS, no_controllers), Some(split));
        let joint = "32 31 0:28 / /c/cpu,cpuacct rw shared:9 - cgroup cgroup rw,cpu,cpuacct\n";
        let mount_point = PathBuf::from("/c/cpu,cpuacct");
        assert_eq!(
            Layout::choose(joint, no_controllers),
            Some(Layout::V1 { cpu: mount_point.clone(), cpuacct: mount_point })
        );
        let unified = "29 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";
        let root = PathBuf::from("/sys/fs/cgroup");
        assert_eq!(
            Layout::choose(unified, |_| "cpuset cpu io memory pids\n".into()),
            Some(Layout::V2 { root })
        );
        assert_eq!(Layout::choose(unified, |_| "cpuset memory\n".into()), None);
        assert_eq!(Layout::choose("", no_controllers), None);
    }

    #[test]
    fn a_prefix_of_a_counter_name_does_not_match() {
        let stat = "nr_periods 12\nnr_throttled 3\nthrottled_time 4000\nwait_sum 9\n";
        assert_eq!(field(stat, "nr_periods"), 12);
        assert_eq!(field(stat, "throttled_time"), 4000);
        assert_eq!(field(stat, "nr"), 0);
        assert_eq!(field("usage_usec x", "usage_usec"), 0);
    }

    #[test]
    fn processes_are_not_kernel_threads() {
        assert!(!is_kernel_thread(std::process::id()));
        assert!(!is_kernel_thread(0));
    }
}
