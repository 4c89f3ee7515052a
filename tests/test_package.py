"""What `import skynet_adapters` gives."""

import subprocess
import sys

import skynet_adapters


def test_importing_the_package_loads_no_target_library():
    code = (
        "import sys, skynet_adapters; "
        "print([name for name in ('dspy', 'gepa', 'pydantic', 'litellm', 'numpy') if name in sys.modules])"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"


def test_every_public_name_is_there_with_a_docstring():
    assert set(skynet_adapters.__all__) == set(skynet_adapters._MODULE_OF)
    for name in skynet_adapters.__all__:
        assert getattr(skynet_adapters, name).__doc__, name
    assert set(skynet_adapters.__all__) <= set(dir(skynet_adapters))


def test_a_name_that_is_not_there_is_an_attribute_error():
    assert not hasattr(skynet_adapters, "as_anything")
