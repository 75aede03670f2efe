"""Import the Python files of a pipelines folder, and the modules next to them.

The folder is a package of its own below ``hindcast_pipelines``, named by its path, and the folders below it
are that package's own: two pipelines folders that one process loads never see each other's modules, and no
file replaces a library. A pipeline imports a module of the folder as ``import prices``, ``from rules.tax
import rate`` or ``from . import prices``. Python's own modules and installed libraries come first, so that a
file added to the folder never changes the imports of the others.

Absolute imports become imports of the folder's package when a file is compiled: they are right anywhere in
the file, and whatever another folder has loaded since.
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType

from hindcast.pipeline import Declarations, declared

#: The package of all folders. Spark's workers cannot import it: functions of these modules are sent to them
#: by value.
PACKAGE = "hindcast_pipelines"
_PASSING = "_passing"


class Folder:
    """The modules of one folder, each imported once in the life of this object."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        path_hash = hashlib.sha256(str(folder.resolve()).encode()).hexdigest()
        self.package = f"{PACKAGE}.f{path_hash[:12]}"
        #: By module name, its declarations; a module that failed has those that it made before.
        self.declarations: dict[str, Declarations] = {}
        self._forget()
        packages = sys.modules.setdefault(PACKAGE, ModuleType(PACKAGE))
        packages.__path__ = []
        root = ModuleType(self.package)
        root.__path__ = [str(folder)]
        sys.modules[self.package] = root
        _folders[self.package] = self

    def load(self, path: Path) -> Declarations:
        """Import one of the folder's files and return its own declarations, without those of modules that it
        imports.

        Raises whatever the module raises.
        """
        name = self._name_of(path)
        if "." in path.stem:
            spec = importlib.util.spec_from_file_location(name, path, loader=_Loader(name, str(path)))
            assert spec is not None and spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            sys.modules[name] = module
            spec.loader.exec_module(module)
        else:
            importlib.import_module(name)
        return self.declarations[name]

    def declared_by(self, path: Path) -> Declarations:
        """The declarations that a file made before it failed."""
        return self.declarations.get(self._name_of(path), Declarations())

    def _name_of(self, path: Path) -> str:
        above = path.relative_to(self.folder).parent.parts
        return ".".join([self.package, *above, path.stem.replace(".", "_")])

    def has_beside(self, name: str) -> bool:
        """Whether a top-level name means a module of this folder."""
        if name in sys.stdlib_module_names:
            return False
        file = self.folder / f"{name}.py"
        package = self.folder / name
        if not file.is_file() and not package.is_dir():
            return False
        try:
            library = importlib.util.find_spec(name)
        except (ImportError, ValueError):
            return name not in sys.modules
        if library is None or library.origin is None:
            return True
        return Path(library.origin).is_relative_to(self.folder)

    def _forget(self) -> None:
        """Drop the folder from Python's caches: its files may have changed since an earlier loading."""
        for name in list(sys.modules):
            if name.startswith(f"{self.package}."):
                del sys.modules[name]
        for path in list(sys.path_importer_cache):
            if Path(path).is_relative_to(self.folder):
                del sys.path_importer_cache[path]


#: By package, the newest loading of each folder.
_folders: dict[str, Folder] = {}


class _Finder(MetaPathFinder):
    """Finds the modules of the folders' packages, by Python's own finder."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not fullname.startswith(f"{PACKAGE}."):
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _Loader(spec.loader.name, spec.loader.path)
        return spec


class _Loader(SourceFileLoader):
    """Runs a file of a folder, and records its declarations.

    Byte code is neither read nor written: Python compares it with its source by whole seconds, so a file that
    is deployed twice in one second could run as it was before.
    """

    def get_code(self, fullname: str) -> CodeType:  # noqa: ARG002 -- Python's signature
        source = ast.parse(self.get_data(self.path), self.path)
        tree = _ImportsBeside(self._folder()).visit(source)
        ast.fix_missing_locations(tree)
        return compile(tree, self.path, "exec", dont_inherit=True)

    def exec_module(self, module: ModuleType) -> None:
        found = Declarations()
        self._folder().declarations[module.__name__] = found
        token = declared.set(found)
        try:
            super().exec_module(module)
        finally:
            declared.reset(token)
        # A module that is sent to Spark's workers takes its loader along, so that must be one that every
        # Python has.
        plain = SourceFileLoader(self.name, self.path)
        module.__loader__ = plain
        assert module.__spec__ is not None
        module.__spec__.loader = plain

    def _folder(self) -> Folder:
        _, package, *_ = self.name.split(".")
        return _folders[f"{PACKAGE}.{package}"]


class _ImportsBeside(ast.NodeTransformer):
    """Adds the folder's package to absolute imports of the folder's own modules."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.stmt:
        if node.level == 0 and node.module is not None and self._is_beside(node.module):
            node.module = f"{self._folder.package}.{node.module}"
        return node

    def visit_Import(self, node: ast.Import) -> list[ast.stmt]:
        found: list[ast.stmt] = []
        for alias in node.names:
            statements = self._imported(alias)
            found.extend(ast.copy_location(statement, node) for statement in statements)
        return found

    def _imported(self, alias: ast.alias) -> list[ast.stmt]:
        if not self._is_beside(alias.name):
            return [ast.Import([alias])]
        full = f"{self._folder.package}.{alias.name}"
        if alias.asname is not None:
            return [ast.Import([ast.alias(full, alias.asname)])]
        top, _, rest = alias.name.partition(".")
        bound: ast.stmt = ast.ImportFrom(self._folder.package, [ast.alias(top)], 0)
        if not rest:
            return [bound]
        # `import rules.tax` binds `rules`, and loads `rules.tax`.
        load_all = ast.Import([ast.alias(full, _PASSING)])
        forget = ast.Delete([ast.Name(_PASSING, ast.Del())])
        return [load_all, forget, bound]

    def _is_beside(self, name: str) -> bool:
        return self._folder.has_beside(name.partition(".")[0])


sys.meta_path.insert(0, _Finder())
