use super::check::derived_guid;
use super::*;

const TWO: &str = r#"
profile = "connectx4"
[time]
quantum_us = 50
dilation = 2.0
[fabric]
subnet_manager = "none"
seed = 7
training_ms = 1500
[[host]]
name = "a"
memory = "512M"
cpus = 2
iommu = true
[[host.hca]]
guid = "0x0002c90300a00001"
[[host]]
name = "b"
[[host.hca]]
name = "x"
port_type = "ib"
blueflame = true
[[link]]
between = ["a/hca0", "b/x"]
rate = "fdr"
width = 1
loss = 0.05
"#;

#[test]
fn a_whole_file() {
    let t = Topology::parse("two.toml", TWO).unwrap();
    assert_eq!(t.time.quantum_us, 50);
    assert_eq!((t.fabric.subnet_manager, t.fabric.training_ms), (SubnetManager::None, Some(1500)));
    assert_eq!((t.hosts[0].iommu, t.hosts[1].iommu), (true, false));
    assert_eq!(t.hosts[0].memory_bytes, 512 << 20);
    assert_eq!(t.hosts[0].hcas[0].guid, 0x0002_c903_00a0_0001);
    assert_eq!(t.hosts[1].memory_bytes, 1 << 30);
    assert_eq!(t.hosts[1].hcas[0].socket, "b-x.sock");
    assert_eq!(t.hosts[1].hcas[0].guid >> 40, 0x02c9);
    assert_eq!((t.hosts[0].hcas[0].blueflame, t.hosts[1].hcas[0].blueflame), (false, true));
    assert_eq!(t.links[0].rate, LinkRate::Fdr);
    assert_eq!(t.hcas().count(), 2);
    let json = serde_json::to_value(&t).unwrap();
    assert_eq!(json["hosts"][0]["hcas"][0]["guid"], "0x0002c90300a00001");
    assert_eq!(json["hosts"][0]["hcas"][0]["socket"], "a-hca0.sock");
    assert_eq!(json["hosts"][0]["memory"], "512M");
    assert_eq!(json["fabric"]["subnet_manager"], "none");
    assert_eq!(json["links"][0]["between"][1], "b/x");
}

/// What an adapter is and how fast it is are two choices.
#[test]
fn personality_and_profile() {
    let adapters = "[[host]]\nname = \"a\"\n[[host.hca]]\n[[host.hca]]\npersonality = \"connectx4\"\n\
                    profile = \"connectx6\"\n";
    for (text, common, profiles) in [
        (adapters.to_owned(), "connectx4", ["connectx4", "connectx6"]),
        (format!("profile = \"connectib\"\n{adapters}"), "connectib", ["connectib", "connectx6"]),
    ] {
        let t = Topology::parse("t.toml", &text).unwrap();
        let found: Vec<_> = t.hcas().map(|(_, hca)| (hca.personality.name, t.profile_of(hca))).collect();
        assert_eq!(found, profiles.map(|profile| ("connectx4", profile)));
        assert_eq!(t.common_profile(), common);
        let json = serde_json::to_value(&t).unwrap();
        assert_eq!(json["hosts"][0]["hcas"][1]["personality"], "connectx4");
        assert_eq!(json["hosts"][0]["hcas"][1]["profile"], "connectx6");
        let part = t.part(None).unwrap();
        assert!(crate::model::world(&t, &part).is_ok());
    }
}

#[test]
fn derived_guids_are_stable_and_distinct() {
    assert_eq!(derived_guid("a/hca0"), derived_guid("a/hca0"));
    assert_ne!(derived_guid("a/hca0"), derived_guid("b/hca0"));
}

#[test]
fn errors_name_file_line_key_and_reason() {
    let host = "[[host]]\nname = \"a\"\n[[host.hca]]\n";
    let linked = format!("{host}[[host]]\nname = \"b\"\n[[host.hca]]\n[[link]]\n");
    for (text, line, key, reason) in [
        ("", 1, "host", "no adapter"),
        ("x = 1\n", 1, "x", "unknown field"),
        ("profile = \"cx9\"\n", 1, "profile", "no profile"),
        ("[time]\nquantum_us = 0\n", 1, "host", "no adapter"),
        ("[time]\nquantum = 5\n", 2, "quantum", "unknown field"),
        (&format!("{host}[[host.hca]]\nicm = \"3G\"\n"), 5, "host.hca.icm", "must be"),
        (&format!("{host}[[host.hca]]\ncapture = \"much\"\n"), 5, "host.hca.capture", "must be"),
        (&format!("{host}[[host.hca]]\nevents = 1023\n"), 5, "host.hca.events", "must be 1024 to 4194304"),
        (&format!("{host}[fabric]\nm_key = \"0\"\n"), 5, "fabric.m_key", "must be"),
        (
            &format!("{host}[fabric]\nsubnet_manager = \"none\"\nm_key = \"0x1\"\n"),
            6,
            "fabric.m_key",
            "only the built-in",
        ),
        ("[fabric]\nsubnet_manager = \"osm\"\n", 2, "subnet_manager", "unknown variant"),
        ("[[host]]\nmemory = \"1G\"\n", 1, "[[host]]", "missing field"),
        ("[[host]]\nname = \"a/b\"\n[[host.hca]]\n", 2, "host.name", "not a name"),
        (&format!("{host}cpus = 3\n"), 4, "cpus", "unknown field"),
        (&format!("{host}guid = \"12\"\n"), 4, "host.hca.guid", "not a GUID"),
        (&format!("{host}guid = \"0x+1\"\n"), 4, "host.hca.guid", "not a GUID"),
        (&format!("{host}guid = 12\n"), 4, "guid", "invalid type"),
        (&format!("{host}port_type = \"fc\"\n"), 4, "host.hca.port_type", "neither \"ib\" nor \"eth\""),
        (
            &format!("{host}personality = \"cx9\"\n"),
            4,
            "host.hca.personality",
            "only connectx4, connectx5, connectx6dx",
        ),
        (
            &format!("{host}wrapped_keys = true\n"),
            4,
            "host.hca.wrapped_keys",
            "a connectx4 has no encryption",
        ),
        (
            &format!("{host}memory_page_faults = true\n"),
            4,
            "host.hca.memory_page_faults",
            "page faults of a connectx4 name queues only",
        ),
        (&format!("{host}profile = \"cx9\"\n"), 4, "host.hca.profile", "no profile"),
        (&format!("{host}rom = \"nowhere.rom\"\n"), 4, "host.hca.rom", "nowhere.rom: No such file"),
        (&format!("{host}rom = \"/etc\"\n"), 4, "host.hca.rom", "/etc: is not a file"),
        (&format!("{host}[[host.hca]]\nname = \"hca0\"\n"), 4, "host.hca.name", "two adapters"),
        (&format!("{host}{host}"), 5, "host.name", "two nodes are called"),
        (&format!("{host}[time]\nquantum_us = 0\n"), 5, "time.quantum_us", "must be"),
        (&format!("{host}[time]\nbudget_ms = 1001\n"), 5, "time.budget_ms", "must be"),
        (&format!("{host}[checker]\npatience_ms = 0\n"), 5, "checker.patience_ms", "must be"),
        (&format!("{host}[time]\ndilation = nan\n"), 5, "time.dilation", "must be"),
        ("[time]\nmode = \"fast\"\n", 2, "mode", "unknown variant"),
        ("[[host]]\nname = \"a\"\nmemory = \"much\"\n", 3, "host.memory", "not a size"),
        ("[[host]]\nname = \"a\"\nmemory = \"99999999999T\"\n", 3, "host.memory", "not a size"),
        ("[[host]]\nname = \"a\"\nmemory = \"1M\"\n", 3, "host.memory", "less than"),
        ("[[host]]\nname = \"a\"\nhugepages = \"3M\"\n", 3, "host.hugepages", "multiple of 2M"),
        (
            "[[host]]\nname = \"a\"\nhugepages = \"600M\"\n",
            3,
            "host.hugepages",
            "half of the host's memory of 1024 MiB",
        ),
        ("[[host]]\nname = \"a\"\ncpus = 0\n", 3, "host.cpus", "must be"),
        (
            &format!("{linked}between = [\"a/hca0\", \"c/hca0\"]\n"),
            8,
            "link.between",
            "no host or switch \"c\"",
        ),
        (&format!("{linked}between = [\"a/hca0\", \"a/hca0\"]\n"), 8, "link.between", "both ends are port 1"),
        (&format!("{linked}between = [\"a/hca0\"]\n"), 8, "between", "invalid length"),
        (&format!("{linked}between = [\"a/hca0\", \"b/hca0\"]\nwidth = 3\n"), 9, "link.width", "must be"),
        (&format!("{linked}between = [\"a/hca0\", \"b/hca0\"]\nloss = 1.5\n"), 9, "link.loss", "must be"),
        ("[[host]\n", 1, "[[host]", ""),
    ] {
        let error = Topology::parse("t.toml", text).unwrap_err().to_string();
        let start = format!("t.toml:{line}: {key}: ");
        assert!(error.starts_with(&start), "{text:?}\n{error}\n{start}");
        assert!(error.contains(reason), "{text:?}\n{error}");
    }
}

#[test]
fn same_socket_twice_is_refused() {
    let text = "[[host]]\nname = \"a-b\"\n[[host.hca]]\nname = \"c\"\n\
                    [[host]]\nname = \"a\"\n[[host.hca]]\nname = \"b-c\"\n";
    let error = Topology::parse("t.toml", text).unwrap_err().to_string();
    assert!(error.contains("share the socket"), "{error}");
}

#[test]
fn same_guid_twice_is_refused() {
    let host = |n| format!("[[host]]\nname = \"{n}\"\n[[host.hca]]\nguid = \"0x1\"\n");
    let text = host("a") + &host("b");
    let error = Topology::parse("t.toml", &text).unwrap_err().to_string();
    assert!(error.contains("same GUID"), "{error}");
}

#[test]
fn a_missing_file_is_named() {
    let error = Topology::load(Path::new("no/such.toml")).unwrap_err();
    assert!(error.to_string().starts_with("no/such.toml: "), "{error}");
}

/// A ROM is read when the topology is, from beside its file.
#[test]
fn an_expansion_rom() {
    let folder = std::env::temp_dir().join(format!("softhca-rom-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let mut image = vec![0; 512];
    image[..2].copy_from_slice(&[0x55, 0xaa]);
    (image[0x18], image[0x1c + 0x0a], image[0x1c + 0x10], image[0x1c + 0x15]) = (0x1c, 0x18, 1, 0x80);
    image[0x1c..0x20].copy_from_slice(b"PCIR");
    let file = folder.join("topology.toml");
    std::fs::write(&file, "[[host]]\nname = \"a\"\n[[host.hca]]\nrom = \"boot.rom\"\n[[host.hca]]\n")
        .unwrap();
    std::fs::write(folder.join("boot.rom"), &image).unwrap();
    let topology = Topology::load(&file).unwrap();
    let roms: Vec<_> = topology.hcas().map(|(_, hca)| hca.rom.as_ref().map(|rom| rom.size())).collect();
    assert_eq!(roms, [Some(2048), None]);
    std::fs::write(folder.join("boot.rom"), [0x55]).unwrap();
    let error = Topology::load(&file).unwrap_err().to_string();
    assert!(
        error.contains("topology.toml:4: host.hca.rom: ") && error.contains("boot.rom: image 1"),
        "{error}"
    );
    std::fs::remove_dir_all(&folder).unwrap();
}
