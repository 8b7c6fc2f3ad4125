//! The JSON Schemas in schemas/json match the structs.

use std::fs;
use std::path::Path;

#[test]
fn checked_in_schemas_are_those_of_the_structs() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("json");
    let schemas = schemas::report::json_schemas();
    for (name, schema) in &schemas {
        let path = folder.join(format!("{name}.schema.json"));
        let mut expected = serde_json::to_string_pretty(schema).unwrap();
        expected.push('\n');
        if std::env::var_os("UPDATE_GOLDEN").is_some() {
            fs::write(&path, &expected).unwrap();
        }
        let found = fs::read_to_string(&path).unwrap_or_default();
        assert!(
            found == expected,
            "{} is not the schema of its struct; UPDATE_GOLDEN=1 rewrites it",
            path.display()
        );
    }
    let entries = fs::read_dir(&folder).unwrap();
    let n_files = entries
        .filter(|e| e.as_ref().unwrap().path().is_file())
        .count();
    assert_eq!(n_files, schemas.len(), "a schema without a struct");
}
