//! The tarball and the Debian package as users have them: unpacked or installed in a clean container of
//! Debian, next to the server of the distribution, with the line in its configuration that the package
//! prints.

use crate::common::{Container, requires, run, wait_until};
use crate::{FIRST_REPLY, path};

/// The tests of a server, each with a container of its own.
macro_rules! tests_with {
    ($server:literal) => {
        use super::Machine;

        #[test]
        fn checksums_verify() {
            Machine::start($server).unpack_tarball();
        }

        #[test]
        fn purging_the_package_leaves_nothing_behind() {
            let machine = Machine::start($server);
            let before = machine.added_files();
            machine.install();
            assert_ne!(machine.added_files(), before);
            machine.apt_get("purge redis-cell");
            assert_eq!(machine.added_files(), before);
        }

        #[test]
        fn the_line_that_the_package_prints_loads_the_module() {
            Machine::start($server).configure();
        }

        #[test]
        fn the_package_knows_whether_its_line_is_there() {
            let machine = Machine::start($server);
            machine.configure();
            let file = format!("/etc/{0}/{0}.conf", machine.family);
            let include = "include /usr/share/doc/redis-cell/examples/redis-cell.conf";
            for line in ["loadmodule ", include] {
                let seen = machine.apt_get("remove redis-cell");
                let warns = seen.contains(&format!("take this out of {file}, or the server will not start"));
                assert!(warns && seen.contains(&format!("\n{line}")), "{seen}");
                let seen = machine.install();
                assert!(seen.contains(&format!("keep only this line for the module in {file}")), "{seen}");
                machine.shell(&format!("sed -i 's,^loadmodule .*libredis_cell.*,{include},' {file}"));
            }
        }

        #[test]
        fn the_tarball_loads() {
            let machine = Machine::start($server);
            machine.unpack_tarball();
            machine.start_from_tarball();
        }
    };
}

mod redis_7_0 {
    tests_with!("redis-7.0");
}

mod redis_8_0 {
    tests_with!("redis-8.0");
}

mod valkey_8_1 {
    tests_with!("valkey-8.1");
}

/// A container with a server of docker/matrix.tsv, and with the result of `make release` in /dist.
struct Machine {
    container: Container,
    /// `redis` or `valkey`, which its files are named after.
    family: &'static str,
}

impl Machine {
    fn start(server: &'static str) -> Self {
        let (family, _version) = server.split_once('-').unwrap();
        let container = Container::idle(&format!("redis-cell-test:{server}"));
        container.copy(&path("target/dist/."), "/dist");
        Self { container, family }
    }

    fn shell(&self, script: &str) -> String {
        self.container.shell(script).unwrap()
    }

    fn apt_get(&self, command: &str) -> String {
        self.shell(&format!("DEBIAN_FRONTEND=noninteractive apt-get -qq {command}"))
    }

    /// Returns the output, which has the hint of the package for its user.
    fn install(&self) -> String {
        self.apt_get("install /dist/redis-cell_*_$(dpkg --print-architecture).deb")
    }

    /// The files that the image does not have, without the records of apt and dpkg.
    fn added_files(&self) -> Vec<String> {
        let changes = run("docker", &["diff", self.container.name()]).unwrap();
        let records = ["/var/cache/apt", "/var/cache/dpkg", "/var/lib/apt", "/var/lib/dpkg", "/var/log"];
        let mut added: Vec<String> = changes
            .lines()
            .filter_map(|line| line.strip_prefix("A "))
            .filter(|file| !records.iter().any(|folder| file.starts_with(folder)))
            .map(str::to_owned)
            .collect();
        added.sort();
        added
    }

    /// Waits until the server that `redis-cli <options>` finds has started and decides as README.md says.
    fn wait_for_answer(&self, options: &str) {
        let call = format!("{}-cli {options} -e CL.THROTTLE visitor 15 30 3600 4", self.family);
        wait_until("the server to answer", || {
            self.container.shell(&call).map(|seen| assert_eq!(seen, FIRST_REPLY))
        });
    }

    /// Installs the package, adds the line that it prints to the configuration of the server, and starts
    /// that.
    fn configure(&self) {
        let family = self.family;
        let output = self.install();
        let directive = format!("loadmodule /usr/lib/{family}/modules/");
        let line = output.lines().find(|line| line.starts_with(&directive));
        let line = line.unwrap_or_else(|| panic!("no `{directive}` in {output}"));
        self.shell(&format!(
            "echo '{line}' >>/etc/{family}/{family}.conf && /etc/init.d/{family}-server start"
        ));
        self.wait_for_answer("");
    }

    /// Unpacks the tarball in /opt. Its own checksums and those next to it must match.
    fn unpack_tarball(&self) {
        self.shell(
            "cd /dist && sha256sum --check --strict SHA256SUMS &&
             tar -xf redis-cell-*-linux-$(uname -m).tar.gz -C /opt &&
             cd /opt/redis-cell-* && sha256sum --check --strict --quiet SHA256SUMS",
        );
    }

    /// Starts a server with the configuration in the tarball, the module being where the service may map it.
    fn start_from_tarball(&self) {
        self.shell(&format!(
            "cd /opt/redis-cell-* && install -D libredis_cell.so /usr/lib/redis/modules/libredis_cell.so &&
             {}-server redis-cell.conf --port 7000 --save '' --daemonize yes",
            self.family
        ));
        self.wait_for_answer("-p 7000");
    }
}

/// The package for arm64 is installed into a root of that architecture, which only has libc6. Its module is
/// the one that `make test-platforms` loads into the servers for arm64.
#[test]
fn the_arm64_package_installs_in_an_arm64_root() {
    let module = path("target/dist/linux-aarch64/libredis_cell.so");
    requires!(std::fs::exists(module).unwrap(), "no module for aarch64: `make release` builds it");
    let machine = Machine::start("redis-7.0");
    machine.shell(
        "mkdir -p /root64/var/lib/dpkg/info /root64/var/lib/dpkg/updates /root64/etc/redis && cd /root64 &&
         touch etc/redis/redis.conf &&
         dpkg --status libc6 | sed 's/^Architecture: .*/Architecture: arm64/; /^Depends\\|^Conffiles\\|^ /d' >var/lib/dpkg/status &&
         dpkg --root=/root64 --add-architecture arm64",
    );
    // The package's scripts are for any shell. The shell of the root could only run on arm64.
    machine.shell("dpkg --root=/root64 --force-script-chrootless --install /dist/redis-cell_*_arm64.deb");
    let status = machine.shell(
        "dpkg-query --admindir=/root64/var/lib/dpkg --show --showformat '${Status}, ${Architecture}' redis-cell",
    );
    assert_eq!(status, "install ok installed, arm64");
    machine.shell(
        "cmp /root64/usr/lib/redis/modules/libredis_cell.so /dist/linux-aarch64/libredis_cell.so &&
         cmp /root64/usr/lib/valkey/modules/libredis_cell.so /dist/linux-aarch64/libredis_cell.so",
    );
}

/// Debian's own checker of packages.
#[test]
fn lintian_finds_nothing() {
    let container = Container::idle("redis-cell-test:lintian");
    container.copy(&path("target/dist/."), "/dist");
    container.shell("lintian --allow-root --fail-on error,warning /dist/*.deb").unwrap();
}

/// A second build makes packages that are equal to the byte.
#[test]
fn packages_are_reproducible() {
    let again = tempfile::tempdir().unwrap();
    let folder = again.path().to_str().unwrap();
    run(&path("scripts/package.sh"), &[folder]).unwrap();
    let read = |file: &str| std::fs::read_to_string(file).unwrap();
    assert_eq!(read(&format!("{folder}/SHA256SUMS")), read(&path("target/dist/SHA256SUMS")));
}
