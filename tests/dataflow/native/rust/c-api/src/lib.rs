pub use dora_operator_api_types::*;
