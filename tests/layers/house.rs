//! The items that the files of a crate define, name and pass on.

use std::collections::{BTreeMap, BTreeSet};
use syn::visit::{self, Visit};
use syn::{Item, UseTree};

/// A file, a file that it depends on, and the first path or method that it takes from there.
pub type Dependency = (String, String, String);

/// The modules of a crate.
pub struct House {
    modules: BTreeMap<Vec<String>, Module>,
    files: Vec<(String, Vec<String>, syn::File)>,
    /// The methods that a file adds to a type of another file, where no other function has that name.
    added: BTreeMap<String, String>,
}

#[derive(Default)]
struct Module {
    file: String,
    defined: BTreeSet<String>,
    /// The names that `use` brings in, with the paths that they stand for.
    used: BTreeMap<String, Vec<String>>,
}

impl House {
    /// Reads files of a crate: names below `src`, and texts.
    pub fn new(sources: &[(String, String)]) -> Self {
        let mut house = Self { modules: BTreeMap::new(), files: Vec::new(), added: BTreeMap::new() };
        for (file, text) in sources {
            let parsed = syn::parse_file(text).unwrap_or_else(|error| panic!("{file}: {error}"));
            let stem = file.trim_end_matches(".rs").trim_end_matches("/mod");
            let module: Vec<String> =
                stem.split('/').filter(|part| *part != "lib").map(str::to_owned).collect();
            house.add_module(file, module.clone(), &parsed.items);
            house.files.push((file.clone(), module, parsed));
        }
        house.added = house.added_methods();
        house
    }

    fn add_module(&mut self, file: &str, path: Vec<String>, items: &[Item]) {
        let mut module = Module { file: file.to_owned(), ..Module::default() };
        for item in items {
            let name = match item {
                Item::Const(item) => &item.ident,
                Item::Enum(item) => &item.ident,
                Item::Fn(item) => &item.sig.ident,
                Item::Static(item) => &item.ident,
                Item::Struct(item) => &item.ident,
                Item::Trait(item) => &item.ident,
                Item::Type(item) => &item.ident,
                Item::Union(item) => &item.ident,
                Item::Macro(item) => {
                    module.defined.extend(item.ident.iter().map(ToString::to_string));
                    // The items that a macro of the file may define when it is used.
                    let tokens = item.mac.tokens.to_string();
                    let words: Vec<&str> = tokens.split_whitespace().collect();
                    let defines = words.windows(2).filter(|pair| ["struct", "enum", "fn"].contains(&pair[0]));
                    module.defined.extend(defines.map(|pair| pair[1].to_owned()));
                    continue;
                }
                Item::Use(item) => {
                    for (name, path) in leaves(&item.tree) {
                        module.used.insert(name, path);
                    }
                    continue;
                }
                Item::Mod(item) => {
                    if let Some((_, items)) = &item.content {
                        let inside = [path.as_slice(), &[item.ident.to_string()]].concat();
                        self.add_module(file, inside, items);
                    }
                    continue;
                }
                _ => continue,
            };
            module.defined.insert(name.to_string());
        }
        // Two modules of one name are two ways of building the same: both files' names count.
        let known = self.modules.entry(path).or_default();
        known.file.clone_from(&module.file);
        known.defined.append(&mut module.defined);
        known.used.append(&mut module.used);
    }

    /// The dependencies of every file.
    pub fn dependencies(&self) -> Vec<Dependency> {
        let mut found = BTreeMap::new();
        for (file, module, parsed) in &self.files {
            for (inside, path) in named(module, parsed) {
                for on in self.files_behind(&inside, &path) {
                    found.entry((file.clone(), on)).or_insert_with(|| path.join("::"));
                }
            }
            for method in called(parsed) {
                if let Some(on) = self.added.get(&method) {
                    found.entry((file.clone(), on.clone())).or_insert_with(|| format!(".{method}()"));
                }
            }
        }
        found.retain(|(file, on), _| file != on);
        found.into_iter().map(|((file, on), name)| (file, on, name)).collect()
    }

    /// The paths into another crate that each file names.
    pub fn foreign_paths(&self, name: &str) -> Vec<(String, String)> {
        let mut found = Vec::new();
        for (file, module, parsed) in &self.files {
            for (_, path) in named(module, parsed) {
                if path[0] == name {
                    found.push((file.clone(), path.join("::")));
                }
            }
        }
        found
    }

    /// The file that defines what a path stands for, and the files that pass it on.
    fn files_behind(&self, from: &[String], path: &[String]) -> Vec<String> {
        let mut files = Vec::new();
        let found = self.follow(from, path, &mut files, 0);
        let ours = ["crate", "$crate", "self", "super"].contains(&path[0].as_str());
        assert!(found || !ours, "{}: nothing is called {}", from.join("::"), path.join("::"));
        files
    }

    /// Adds the files behind a path; false when it leads out of the crate.
    fn follow(&self, from: &[String], path: &[String], files: &mut Vec<String>, depth: usize) -> bool {
        let mut module = from.to_vec();
        let mut rest = path;
        let mut rooted = false;
        while let Some((first, more)) = rest.split_first() {
            match first.as_str() {
                "crate" | "$crate" => module.clear(),
                "self" => {}
                "super" => {
                    module.pop();
                }
                _ => break,
            }
            rooted = true;
            rest = more;
        }
        while let Some((name, more)) = rest.split_first() {
            let Some(here) = self.modules.get(&module) else { return false };
            let inside = [module.as_slice(), std::slice::from_ref(name)].concat();
            if here.defined.contains(name) {
                files.push(here.file.clone());
                return true;
            }
            if self.modules.contains_key(&inside) {
                module = inside;
            } else if let Some(target) =
                here.used.get(name).filter(|target| target[..] != path[..] && depth < 9)
            {
                // A name that the very file brings in is followed from there; one that another passes on
                // counts, unless it is another crate's.
                let place = files.len();
                let target = [target.as_slice(), more].concat();
                if self.follow(&module, &target, files, depth + 1) && (rooted || module != from) {
                    files.insert(place, here.file.clone());
                }
                return true;
            } else {
                return false; // another crate's, or a variable
            }
            rest = more;
        }
        true
    }

    fn added_methods(&self) -> BTreeMap<String, String> {
        let mut functions: BTreeMap<String, usize> = BTreeMap::new();
        let mut added = BTreeMap::new();
        for (file, module, parsed) in &self.files {
            for item in &parsed.items {
                if let Item::Trait(item) = item {
                    for item in &item.items {
                        if let syn::TraitItem::Fn(item) = item {
                            *functions.entry(item.sig.ident.to_string()).or_default() += 1;
                        }
                    }
                }
                let Item::Impl(item) = item else { continue };
                let syn::Type::Path(of) = &*item.self_ty else { continue };
                let of: Vec<String> = of.path.segments.iter().map(|part| part.ident.to_string()).collect();
                let elsewhere = self.files_behind(module, &of).last().is_some_and(|on| on != file);
                for function in &item.items {
                    let syn::ImplItem::Fn(function) = function else { continue };
                    let name = function.sig.ident.to_string();
                    *functions.entry(name.clone()).or_default() += 1;
                    if elsewhere && item.trait_.is_none() {
                        added.insert(name, file.clone());
                    }
                }
            }
        }
        added.retain(|name, _| functions[name] == 1);
        added
    }
}

/// The names that a `use` brings in, with the path of each.
fn leaves(tree: &UseTree) -> Vec<(String, Vec<String>)> {
    match tree {
        UseTree::Path(path) => {
            let first = path.ident.to_string();
            leaves(&path.tree)
                .into_iter()
                .map(|(name, mut rest)| {
                    rest.insert(0, first.clone());
                    // `use a::b::{self}` brings in b.
                    if rest.last().is_some_and(|last| last == "self") && rest.len() > 1 {
                        rest.pop();
                        return (if name == "self" { first.clone() } else { name }, rest);
                    }
                    (name, rest)
                })
                .collect()
        }
        UseTree::Name(name) => vec![(name.ident.to_string(), vec![name.ident.to_string()])],
        UseTree::Rename(name) => vec![(name.rename.to_string(), vec![name.ident.to_string()])],
        UseTree::Glob(_) => vec![], // the crate has none of its own modules
        UseTree::Group(group) => group.items.iter().flat_map(leaves).collect(),
    }
}

/// All paths in a file, each with the module that it stands in.
fn named(module: &[String], file: &syn::File) -> Vec<(Vec<String>, Vec<String>)> {
    let mut names = Names { module: module.to_vec(), found: Vec::new() };
    names.visit_file(file);
    names.found
}

struct Names {
    module: Vec<String>,
    found: Vec<(Vec<String>, Vec<String>)>,
}

impl Names {
    fn add(&mut self, path: Vec<String>) {
        self.found.push((self.module.clone(), path));
    }
}

impl<'ast> Visit<'ast> for Names {
    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        self.module.push(item.ident.to_string());
        visit::visit_item_mod(self, item);
        self.module.pop();
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        for (_, path) in leaves(&item.tree) {
            self.add(path);
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        self.add(path.segments.iter().map(|part| part.ident.to_string()).collect());
        visit::visit_path(self, path);
    }

    fn visit_visibility(&mut self, _: &'ast syn::Visibility) {}

    fn visit_macro(&mut self, item: &'ast syn::Macro) {
        visit::visit_macro(self, item);
        // The expansion of a macro is unknown; anything that looks like a path counts as one.
        let tokens = item.tokens.to_string().replace(" :: ", "::").replace("$ ", "$");
        for word in tokens.split(|part: char| !(part.is_alphanumeric() || "_:$".contains(part))) {
            let word = word.trim_matches(':');
            if word.contains("::") {
                self.add(word.split("::").map(str::to_owned).collect());
            }
        }
    }
}

/// The names of all methods that a file calls.
fn called(file: &syn::File) -> BTreeSet<String> {
    struct Methods(BTreeSet<String>);
    impl<'ast> Visit<'ast> for Methods {
        fn visit_expr_method_call(&mut self, call: &'ast syn::ExprMethodCall) {
            self.0.insert(call.method.to_string());
            visit::visit_expr_method_call(self, call);
        }
    }
    let mut methods = Methods(BTreeSet::new());
    methods.visit_file(file);
    methods.0
}
