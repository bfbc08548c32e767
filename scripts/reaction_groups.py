"""The substituents and functional groups from which the demo's textbook reactions are made."""

from __future__ import annotations

from dataclasses import dataclass

# A functional group is written before the substituent or after it, whichever comes first in the
# usual SMILES of the molecule; None means that the substituent always comes first.
FUNCTIONS: dict[str, tuple[str | None, str]] = {
    "acid": ("O=C(O)", "C(=O)O"),
    "methyl_ester": ("COC(=O)", "C(=O)OC"),
    "ethyl_ester": ("CCOC(=O)", "C(=O)OCC"),
    "acyl_chloride": ("O=C(Cl)", "C(=O)Cl"),
    "aldehyde": ("O=C", "C=O"),
    "ketone": ("CC(=O)", "C(C)=O"),
    "methanol": ("OC", "CO"),
    "methyl_carbinol": ("CC(O)", "C(C)O"),
    "dimethyl_carbinol": ("CC(C)(O)", "C(C)(C)O"),
    "hydroxy": ("O", "O"),
    "acetate": ("CC(=O)O", "OC(C)=O"),
    "amine": ("N", "N"),
    "acetamide": ("CC(=O)N", "NC(C)=O"),
    "boc_amine": ("CC(C)(C)OC(=O)N", "NC(=O)OC(C)(C)C"),
    "nitro": ("O=[N+]([O-])", "[N+](=O)[O-]"),
    "azide": ("[N-]=[N+]=N", "N=[N+]=[N-]"),
    "nitrile": ("N#C", "C#N"),
    "bromide": ("Br", "Br"),
    "iodide": ("I", "I"),
    "boronic_acid": ("OB(O)", "B(O)O"),
    "alkene": ("C=C", "C=C"),
    "acrylate": ("COC(=O)C=C", "C=CC(=O)OC"),
    "ethyl_acrylate": ("CCOC(=O)C=C", "C=CC(=O)OCC"),
    "propionate": ("COC(=O)CC", "CCC(=O)OC"),
    "oxime": ("ON=C", "C=NO"),
    "ketoxime": ("CC(=NO)", "C(C)=NO"),
    "biphenyl": (None, "-c2ccccc2"),
    "fluorobiphenyl": (None, "-c2ccc(F)cc2"),
    "morpholine": (None, "N2CCOCC2"),
    "morpholide": (None, "C(=O)N2CCOCC2"),
    "piperidide": (None, "C(=O)N2CCCCC2"),
    "anilide": ("O=C(Nc1ccccc1)", "C(=O)Nc2ccccc2"),
    "phenylurea": ("O=C(Nc1ccccc1)N", "NC(=O)Nc2ccccc2"),
    "phenylimine": (None, "C=Nc2ccccc2"),
    "phenylalkyne": (None, "C#Cc2ccccc2"),
    "phenyltriazole": (None, "n2cc(-c3ccccc3)nn2"),
    "chalcone": (None, "C=CC(=O)c2ccccc2"),
    "tosylamide": (None, "NS(=O)(=O)c2ccc(C)cc2"),
    "nitroaniline": (None, "Nc2ccc([N+](=O)[O-])cc2"),
    "epoxide": (None, "C2CO2"),
}


@dataclass(frozen=True)
class Group:
    """A substituent: ``tail`` ends a molecule, ``head`` starts one (``{}``: where it goes on).

    ``group["acid"]`` is the molecule with that functional group; ``leads`` says that SMILES
    usually starts with this substituent.
    """

    tail: str
    head: str
    leads: bool = False
    held_out: bool = False

    def __getitem__(self, function: str) -> str:
        before, after = FUNCTIONS[function]
        if before is not None and not self.leads:
            return before + self.tail
        if "1" not in self.head:  # no ring is open around the functional group
            after = after.replace("2", "1").replace("3", "2")
        return self.head.format(after)


def _para(head: str, branch: str, leads: bool = False, held_out: bool = False) -> Group:
    """Return the phenyl group with a substituent in para position, written both ways."""
    return Group(f"c1ccc({branch})cc1", f"{head}c1ccc({{}})cc1", leads, held_out)


PHENYL = Group("c1ccccc1", "c1ccc({})cc1")
DONORS = (
    _para("C", "C", leads=True),
    _para("CO", "OC", leads=True),
    _para("CC", "CC", leads=True),
    _para("CC(C)", "C(C)C", leads=True, held_out=True),
)
HALOGENATED = (_para("F", "F"), _para("Cl", "Cl", held_out=True))
ACCEPTORS = (
    _para("N#C", "C#N", leads=True),
    _para("FC(F)(F)", "C(F)(F)F", held_out=True),
)
MILD = (PHENYL, *DONORS, *HALOGENATED)  # no group that reducing or basic reagents would attack
ARYLS = (*MILD, *ACCEPTORS)

ETHYL = Group("CC", "CC{}", leads=True)
PROPYL = Group("CCC", "CCC{}", leads=True)
BUTYL = Group("CCCC", "CCCC{}", leads=True)
ISOBUTYL = Group("CC(C)C", "CC(C)C{}", leads=True, held_out=True)
ALKYLS = (ETHYL, PROPYL, BUTYL, ISOBUTYL)
BENZYL = Group("Cc1ccccc1", "c1ccc(C{})cc1")
PHENETHYL = Group("CCc1ccccc1", "c1ccc(CC{})cc1")
PRIMARY = (*ALKYLS, PHENETHYL)
