//! The model of the machine's CPU, as the system reports it.

use std::fs;
use std::process::Command;

use schemas::report::CpuModel;

/// The model of this machine's CPU; parts that the system does not report are left out.
pub fn cpu_model() -> CpuModel {
    let found = match cfg!(target_os = "macos") {
        true => brand(),
        false => fs::read_to_string("/proc/cpuinfo")
            .ok()
            .map(|text| parse(&text)),
    };
    found.unwrap_or_else(|| parse(""))
}

/// The name that macOS reports.
fn brand() -> Option<CpuModel> {
    let sysctl = Command::new("sysctl")
        .args(["-n", "machdep.cpu.brand_string"])
        .output();
    let name = String::from_utf8(sysctl.ok()?.stdout).ok()?;
    Some(named(name.trim()))
}

/// Reads the text of /proc/cpuinfo, whose keys depend on the architecture: x86 reports a name, 64-bit
/// Arm only the numbers of its designer and of the core.
fn parse(text: &str) -> CpuModel {
    let value = |key: &str| {
        let lines = text.lines().filter_map(|line| line.split_once(':'));
        let mut values = lines.filter(|(found, _)| found.trim() == key);
        values.next().map(|(_, value)| value.trim())
    };
    let number = |key: &str| value(key)?.parse().ok();
    let arm = || {
        let (designer, part) = (value("CPU implementer")?, value("CPU part")?);
        Some(format!("Arm implementer {designer} part {part}"))
    };
    let name = value("model name").map(str::to_owned).or_else(arm);
    CpuModel {
        family: number("cpu family"),
        model: number("model"),
        ..named(&name.unwrap_or_default())
    }
}

fn named(name: &str) -> CpuModel {
    let name = match name {
        "" => "unknown",
        name => name,
    };
    CpuModel {
        name: name.to_owned(),
        family: None,
        model: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpuinfo_of_x86() {
        let text = "processor\t: 0\nvendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 106\n\
                    model name\t: Intel(R) Xeon(R) CPU @ 2.60GHz\n\nprocessor\t: 1\nmodel\t\t: 7\n";
        let found = parse(text);
        assert_eq!(found.name, "Intel(R) Xeon(R) CPU @ 2.60GHz");
        assert_eq!((found.family, found.model), (Some(6), Some(106)));
    }

    #[test]
    fn cpuinfo_of_arm() {
        let text = "processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd40\n";
        let found = parse(text);
        assert_eq!(found.name, "Arm implementer 0x41 part 0xd40");
        assert_eq!((found.family, found.model), (None, None));
    }

    #[test]
    fn a_system_that_reports_nothing() {
        assert_eq!(parse("").name, "unknown");
        assert_eq!(parse("model name\t:\n").name, "unknown");
    }
}
